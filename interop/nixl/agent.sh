#!/usr/bin/env bash
# NIXL's agent, which loads the plugin NVLANE: memory to keys and back. Within `nvlane target --run`, with a namespace of keys.
# Outside: PREFIX, where library and plugin are installed; NIXL_FLAGS, compiler options for a program over NIXL; NVLANE.
set -eu -o pipefail

export NIXL_PLUGIN_DIR=$PREFIX/lib/nixl
# shellcheck disable=SC2086
c++ -std=c++20 -Wall -Wextra -O1 -g "$(dirname "$0")/agent.cpp" $NIXL_FLAGS -o agent
./agent "${NVLANE_ADDR%%\?*}"

# A target that is killed, and another one at its address.
cat >serve.sh <<'END_OF_SCRIPT'
exec "$NVLANE" --log error target --listen "$1" --nqn nqn.2016-06.io.nvlane:lost --namespace kv:ram:512M \
    --run "echo \"\$PPID \$NVLANE_ADDR\" >new && mv new $2 && exec sleep 60"
END_OF_SCRIPT
bash serve.sh 127.0.0.1:0 first >first.log 2>&1 &
trap '[ ! -s second ] || kill "$(cut -d " " -f 1 second)"' EXIT
until [ -s first ]; do sleep 0.1; done
read -r process address <first
address=${address%%\?*}
./agent "$address" "$process" "bash serve.sh ${address%%/*} second >second.log 2>&1 &"
