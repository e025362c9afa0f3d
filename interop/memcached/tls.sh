#!/usr/bin/env bash
# pymemcache over TLS with a client's certificate: TLS 1.3 and 1.2, a pool, long values. Without a certificate, with an unknown
# authority or in cleartext nothing is served.
# Outside: a listener with the certificates that `certificates` makes in this directory, which requires those of clients.
set -eu -o pipefail

"$PYTHON" "${0%.sh}.py" "${NVLANE_MEMCACHED%:*}" "${NVLANE_MEMCACHED##*:}"
