#!/usr/bin/env bash
# gomemcache's own tests of a server pass: the client of most programs in Go. Outside: a key-value namespace.
set -eu -o pipefail

# A copy, for its tests know one address only.
rm -rf sources
cp -r "$GOMEMCACHE" sources
cd sources
sed -i "s/localhost:11211/$NVLANE_MEMCACHED/" memcache/memcache_test.go
go test -count=1 -v -run '^TestLocalhost$' ./memcache | tee ../results
# A server that is not there makes the test skip itself.
grep -Eq '^--- PASS: TestLocalhost' ../results
