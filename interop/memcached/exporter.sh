#!/usr/bin/env bash
# Two Prometheus exporters scrape a server that is empty, that has one pair, and that has as many as fit, up to a million:
# memcached_exporter, and one of all fields of `stats` with its client library. No field is refused.
# Outside: an empty key-value namespace.
set -eu -o pipefail

"$PYTHON" "${0%.sh}.py" "$NVLANE_MEMCACHED" "$EXPORTER" "$MEMCACHED_EXPORTER"
