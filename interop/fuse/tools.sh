#!/usr/bin/env bash
# Programs on a file of `nvlane attach fuse --allow-other --mode 0644`, which `--run` starts this under: qemu, fio, sqlite3, and, as
# root, a file system on a loop device, and another user.
# Outside: NVLANE_DEVICE, the file of a namespace of 64 MiB; BLOCK, its block size; an empty working directory.
set -eu -o pipefail

file=$NVLANE_DEVICE
fail() { echo "FAIL: $*"; exit 1; }

[ "$(stat --format '%s %b %a' "$file")" = "67108864 131072 644" ] || fail "attributes: $(stat "$file")"
[ "$(ls "$(dirname "$file")")" = ns1 ] || fail 'the directory has not one file'
[ "$(stat --file-system --format %b "$(dirname "$file")")" = 16384 ] || fail 'statfs'

# Unaligned, through the page cache; a file of a fixed size.
head -c 48M /dev/urandom >image
truncate --size 64M image
dd if=image of="$file" bs=1000003 conv=notrunc,fsync status=none
cmp image "$file"
cp image "$file"
cmp image "$file"
dd if=image of="$file" bs=1M oflag=direct conv=notrunc status=none
cmp image "$file"
if dd if=/dev/zero of="$file" bs=100 count=1 oflag=direct conv=notrunc 2>dd.log; then fail 'half a block is written'; fi
if truncate --size 1M "$file" 2>/dev/null || touch "$(dirname "$file")/other" 2>/dev/null; then fail 'names or sizes change'; fi
fallocate --punch-hole --offset 1M --length 2M "$file"
cmp --bytes 2097152 "$file" /dev/zero --ignore-initial 1048576:0

# qemu, which finds out the block size by itself without the cache.
for cache in none writeback; do
    qemu-io -f raw -t "$cache" \
        -c 'write -P 0x5a 0 4M' -c 'read -P 0x5a 0 4M' -c 'write -z 64k 64k' -c 'read -P 0 64k 64k' \
        -c 'write -z -u 1M 1M' -c 'read -P 0 1M 1M' -c 'discard 3M 64k' -c 'write -P 4 1k 512' -c 'read -P 4 1k 512' \
        -c 'aio_write -P 6 32k 32k' -c aio_flush -c 'read -P 6 32k 32k' -c flush "$file" >>qemu-io.log
done
if grep -i 'error\|mismatch\|failed' qemu-io.log; then fail 'qemu-io'; fi

# fio, which verifies what it wrote: in blocks and several at once, and within blocks.
fio --name=direct --filename="$file" --rw=randwrite --bsrange=4k-256k --direct=1 --ioengine=libaio --iodepth=16 --size=64M \
    --verify=crc32c --output=fio.log
fio --name=mapped --filename="$file" --rw=randwrite --bs=4k --ioengine=mmap --size=64M --io_size=8M --verify=crc32c \
    --output=fio.log
fio --name=cached --filename="$file" --rw=randwrite --bsrange=512-64k --bs_unaligned --ioengine=psync --fsync=32 --size=64M \
    --io_size=16M --verify=crc32c --output=fio.log

[ "$(id -u)" = 0 ] || { echo 'not root: no loop device, no other user'; exit 0; }
setpriv --reuid 65534 --regid 65534 --clear-groups dd if="$file" of=/dev/null bs=1M count=1 status=none
if setpriv --reuid 65534 --regid 65534 --clear-groups dd if=/dev/zero of="$file" bs=4k count=1 conv=notrunc 2>dd.log; then
    fail 'another user writes'
fi
# Made on the file, used on a device.
mkfs.ext4 -q -F -b 4096 "$file"
device=$(losetup --find --show --direct-io=on --sector-size "$BLOCK" "$file") || { echo 'no loop device here'; exit 0; }
mkdir mounted
trap 'umount --lazy mounted 2>/dev/null || true; losetup --detach "$device"' EXIT
mount "$device" mounted
sqlite3 mounted/data "create table t (a); with recursive n (a) as (select 1 union all select a + 1 from n where a < 20000)
    insert into t select a from n;"
head -c 20M /dev/urandom >mounted/random
cp mounted/random random
fstrim mounted
umount mounted
fsck.ext4 -f -n "$device" >fsck.log 2>&1 || fail "$(cat fsck.log)"
mount "$device" mounted
cmp random mounted/random
[ "$(sqlite3 mounted/data 'select sum(a) from t; pragma integrity_check')" = $'200010000\nok' ] || fail 'sqlite'
umount mounted
