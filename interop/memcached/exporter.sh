#!/usr/bin/env bash
# A Prometheus exporter scrapes a server that is empty, that has one pair, and that has as many as fit, up to a million: no field of
# `stats` is refused. It is one of all fields, with the client library of memcached_exporter, which is asked as well where it is installed.
# Outside: an empty key-value namespace.
set -eu -o pipefail

"$PYTHON" "${0%.sh}.py" "$NVLANE_MEMCACHED" "$EXPORTER"
