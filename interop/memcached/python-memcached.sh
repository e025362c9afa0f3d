#!/usr/bin/env bash
# python-memcached's own tests pass. It is the client that asks with each command of its own send, and waits three seconds.
# Outside: a key-value namespace with ?flush, whose values may be as large as memcached's.
set -eu -o pipefail

"$PYTHON" "${0%.sh}.py" "$NVLANE_MEMCACHED" "$PYTHON_MEMCACHED"
