#!/usr/bin/env bash
# pymemcache authenticates as memcached's ASCII authentication has it, by a set; before that, and with a wrong password, no command
# is executed.
# Outside: a listener with the user nvlane and the password correct horse.
set -eu -o pipefail

"$PYTHON" "${0%.sh}.py" "${NVLANE_MEMCACHED%:*}" "${NVLANE_MEMCACHED##*:}"
