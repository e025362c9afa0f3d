#!/usr/bin/env bash
# Read, write and poll queues are as many as asked for, each its own connection, and
# I/O works on every kind, from every CPU.
# Outside: namespace 1 of 64 MiB; this guest has 2 CPUs.
. /lab/lib.sh

connect --nr-io-queues 2 --nr-write-queues 2 --nr-poll-queues 2 --queue-size 32
[ "$(cat "$SYSFS/queue_count")" = 7 ] || fail "$(cat "$SYSFS/queue_count") queues"
[ "$(cat "$SYSFS/sqsize")" = 31 ] || fail "sqsize $(cat "$SYSFS/sqsize")"
[ "$(outside connections)" = 7 ] || fail "the target has $(outside connections) connections"
for cpu in 0 1; do
    taskset -c $cpu dd if=/dev/urandom of="$DISK" bs=64k count=16 oflag=direct status=none
    taskset -c $cpu dd if="$DISK" of=/dev/null bs=64k count=16 iflag=direct status=none
done
verified_fio --name=poll --filename="$DISK" --rw=randwrite --bs=4k --size=1M --number_ios=256 \
    --ioengine=pvsync2 --hipri --numjobs=2 --offset_increment=1M
