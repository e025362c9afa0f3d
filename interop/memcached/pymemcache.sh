#!/usr/bin/env bash
# pymemcache's own integration tests pass: all of its clients, with and without a prefix, and with values serialised in several ways.
# Outside: a key-value namespace of 50 MiB with ?flush, for they set that limit.
set -eu -o pipefail

tests=$("$PYTHON" -c 'import pymemcache.test as of; print(of.__path__[0])')/test_integration.py
"$PYTHON" -m pytest -q -p no:cacheprovider "$tests" \
  --server "${NVLANE_MEMCACHED%:*}" --port "${NVLANE_MEMCACHED##*:}" | tee results
# Those of TLS, unless there is a server for it, skip.
grep -Eq '^100 passed, 3 skipped' results
