#!/usr/bin/env bash
# Programs in C and C++ over the installed libnvlane: compiled by pkg-config, alone, in a static build, and under memcheck; then
# fio with its engine. Within `nvlane target --run`, with a namespace of blocks (1) and one of keys (2). Outside: PREFIX, where
# library and engine are installed; SOURCES, the library's crate; NVLANE.
set -eu -o pipefail

export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig LD_LIBRARY_PATH=$PREFIX/lib
target=${NVLANE_ADDR%%\?*}
warnings="-Wall -Wextra -Werror -O1 -g"
flags=$(pkg-config --cflags --libs nvlane)
for name in blocks lane; do
    # shellcheck disable=SC2086
    cc -std=c11 -Wpedantic $warnings "$SOURCES/examples-c/$name.c" $flags -o "$name"
done
# shellcheck disable=SC2086
c++ -std=c++17 -Wpedantic $warnings "$SOURCES/examples-c/key_value.cpp" $flags -o key_value

./blocks "$target?ns=1" depth=4
./lane "$target?ns=1" 5000
./key_value "$target?ns=2"

# What a person mistypes.
refused() { # TEXT COMMAND...: it fails, and says so.
    text=$1; shift
    if out=$("$@" 2>&1); then echo "accepted: $*" >&2; exit 1; fi
    [[ $out == *"$text"* ]] || { echo "$*: $out" >&2; exit 1; }
}
refused "there is no option detph; there are hostnqn" ./blocks "$target?ns=1" detph=4
refused "keys and values" ./blocks "$target?ns=2"
refused "has no namespace 7" ./blocks "$target?ns=7"
refused "nothing listens there" ./blocks "127.0.0.1:1/nqn.2016-06.io.nvlane:c"
refused "write the address of its target before it" ./blocks "nqn.2016-06.io.nvlane:c"

# Whom to trust: secrets of both sides and a key of TLS, as files and as texts.
"$NVLANE" keys generate --out host.secret
"$NVLANE" keys generate --out target.secret
"$NVLANE" keys generate --tls --out tls.key
cat >trust.sh <<'END'
set -eu
address=${NVLANE_ADDR%%\?*}
./blocks "$address" dhchap-secret=host.secret "dhchap-ctrl-secret=$(cat target.secret)" tls-key=tls.key data-digest=yes
if ./blocks "$address" dhchap-secret=target.secret tls-key=tls.key 2>refused; then exit 1; fi
grep -q "is it the secret of" refused
if ./blocks "$address" dhchap-secret=host.secret 2>refused; then exit 1; fi
grep -q "needs a TLS key" refused
END
"$NVLANE" --log error target --listen 127.0.0.1:0 --nqn nqn.2016-06.io.nvlane:trust --namespace ram:16M \
    --dhchap-secret host.secret --dhchap-ctrl-secret target.secret --tls required --tls-key tls.key --run "bash trust.sh"

# A target that is killed.
cc -std=gnu11 $warnings "$(dirname "$0")/lost.c" $flags -o lost
"$NVLANE" --log error target --listen 127.0.0.1:0 --nqn nqn.2016-06.io.nvlane:lost --namespace ram:16M --namespace kv:ram:16M \
    --run 'echo "$PPID $NVLANE_ADDR" >lost.new && mv lost.new lost.target && sleep 60' &
until [ -s lost.target ]; do sleep 0.1; done
read -r process address <lost.target
./lost "${address%%\?*}" "$process"

memcheck() {
    valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
        --suppressions="$(dirname "$0")/valgrind.supp" "$@"
}
memcheck ./blocks "$target?ns=1"
memcheck ./lane "$target?ns=1" 200
memcheck ./key_value "$target?ns=2"
