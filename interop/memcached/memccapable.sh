#!/usr/bin/env bash
# All checks of libmemcached's memccapable pass, of the ASCII and of the binary protocol.
# Outside: an empty key-value namespace with ?flush.
set -eu -o pipefail

memccapable -h "${NVLANE_MEMCACHED%:*}" -p "${NVLANE_MEMCACHED##*:}" | tee checks
# 27 of them in ASCII, 27 binary: a version with fewer would prove less.
[ "$(grep -c '\[pass\]' checks)" -ge 54 ]
