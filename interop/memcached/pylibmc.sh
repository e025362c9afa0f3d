#!/usr/bin/env bash
# pylibmc's own tests pass: libmemcached from Python, with its binary and text protocols, its pools and its serialisers.
# Outside: a key-value namespace. Left out: test_autoconf.py, which asks Amazon's service at memcached's usual port.
set -eu -o pipefail

export MEMCACHED_HOST="${NVLANE_MEMCACHED%:*}" MEMCACHED_PORT="${NVLANE_MEMCACHED##*:}"
# A copy, as the sources of the package beside them would hide the installed one.
rm -rf tests
cp -r "$PYLIBMC" tests
"$PYTHON" -m pytest -q -p no:cacheprovider tests --ignore tests/test_autoconf.py | tee results
grep -Eq '^38 passed' results
