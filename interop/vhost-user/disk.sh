#!/usr/bin/env bash
# A disk of a virtual machine behind `nvlane attach vhost-user`: data and a file system are whole, freed space comes back in the
# backing file, the disk grows with its namespace, and a bridge that is killed or ends, and is started again, is no error.
# Outside: namespace 1 of 256 MiB in the sparse file "disk", served with two queues; kills, ends and starts the bridge.
. /lab/lib.sh

DISK=/dev/vdb
wait_for 10 test -b "$DISK"
queue=/sys/block/vdb/queue
[ "$(bytes_of "$DISK")" = $((256 << 20)) ] || fail "$(bytes_of "$DISK") bytes"
[ "$(cat $queue/logical_block_size)" = 512 ] || fail "blocks of $(cat $queue/logical_block_size) bytes"
[ "$(cat $queue/write_cache)" = 'write back' ] || fail "no flush"
[ "$(cat $queue/discard_max_bytes)" -gt 0 ] || fail "no discard"
[ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ] || fail "no write zeroes"
[ "$(ls /sys/block/vdb/mq | wc -l)" = 2 ] || fail "not two queues"
[[ $(cat /sys/block/vdb/serial) = *0001 ]] || fail "serial number $(cat /sys/block/vdb/serial)"
same_data "$DISK" 16

mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$DISK"
mount "$DISK" /mnt
write_files /mnt
umount /mnt
mount "$DISK" /mnt
check_files /mnt
head -c 48M /dev/urandom >/mnt/file
sync
full=$(outside allocated-kib disk)
rm /mnt/file
sync
fstrim /mnt
trimmed=$(outside allocated-kib disk)
say "with 48 MiB in a file $full KiB, without it $trimmed"
[ "$trimmed" -le $((full - 44 * 1024)) ] || fail "only $((full - trimmed)) KiB came back"

for end in kill stop; do
    rm -f /mnt/fio*
    verified_fio --name=fio --directory=/mnt --size=16M --rw=randwrite --bsrange=4k-64k --iodepth=16 --numjobs=2 &
    fio=$!
    wait_for 60 test -e /mnt/fio.1.0
    outside "$end-bridge"
    outside start-bridge
    wait $fio || fail "fio over a bridge: $end"
    say "fio over a bridge: $end"
done

outside namespaces 1=file:disk:384M
wait_for 30 eval '[ "$(bytes_of "$DISK")" = $((384 << 20)) ]'
resize2fs "$DISK" 2>/dev/null
check_files /mnt
umount /mnt
fsck.ext4 -fn "$DISK" >/tmp/fsck || { cat /tmp/fsck; fail "fsck.ext4"; }
