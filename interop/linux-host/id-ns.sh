#!/usr/bin/env bash
# nvme id-ns: sizes, block format and identifiers agree with the block device that the
# kernel made of it; both block sizes.
# Outside: namespace 1 of 64 MiB with 512-byte blocks, 2 of 32 MiB with 4096-byte blocks.
. /lab/lib.sh

connect
wait_for 10 has_disk 2
for nsid in 1 2; do
    disk=$(disk_of $nsid)
    BYTES=$(bytes_of "$disk") BLOCK=$(cat "/sys/block/${disk##*/}/queue/logical_block_size")
    export BYTES BLOCK
    [ "$BYTES" = $((nsid == 1 ? 64 << 20 : 32 << 20)) ] || fail "$disk has $BYTES bytes"
    [ "$BLOCK" = $((nsid == 1 ? 512 : 4096)) ] || fail "$disk has blocks of $BLOCK"
    nvme id-ns "$disk" -o json >/tmp/ns
    ./holds </tmp/ns 'nsze == ncap == int(env["BYTES"]) // int(env["BLOCK"])' 'nuse <= nsze' \
        '1 << lbafs[flbas & 15]["ds"] == int(env["BLOCK"])' 'lbafs[flbas & 15]["ms"] == 0' \
        'flbas & 16 == 0' 'dps == 0' 'nmic & 1' 'nlbaf < len(lbafs) + 1' 'nsattr & 1 == 0'
    stand_in || ./holds </tmp/ns 'int(nguid.replace("-", ""), 16) != 0' 'dlfeat & 7 == 1' 'dlfeat & 8' \
        'mssrl >= 1 and mcl >= mssrl'
done
