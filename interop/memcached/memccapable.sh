#!/usr/bin/env bash
# All checks of libmemcached's memccapable pass, of the ASCII and of the binary protocol, and its memcdump lists every key.
# Outside: an empty key-value namespace with ?flush.
set -eu -o pipefail

memccapable -h "${NVLANE_MEMCACHED%:*}" -p "${NVLANE_MEMCACHED##*:}" | tee checks
# 27 of them in ASCII, 27 binary: a version with fewer would prove less.
[ "$(grep -c '\[pass\]' checks)" -ge 54 ]

exec 3<>"/dev/tcp/${NVLANE_MEMCACHED%:*}/${NVLANE_MEMCACHED##*:}"
{ printf 'set dumped-%d 0 0 1 noreply\r\nv\r\n' {1..5000}; printf 'mn\r\n'; } >&3
read -r -t 60 answer <&3
[ "$answer" = $'MN\r' ]
memcdump --servers "$NVLANE_MEMCACHED" | grep '^dumped-' | sort -u >dumped
[ "$(wc -l <dumped)" -eq 5000 ]
