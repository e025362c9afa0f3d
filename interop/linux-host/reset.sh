#!/usr/bin/env bash
# nvme reset under I/O: the controller is disabled and enabled again on new connections, and
# no I/O fails.
# Outside: namespace 1 of 64 MiB.
. /lab/lib.sh

expect_disruption
connect
verified_fio --name=load --filename="$DISK" --rw=randrw --bs=16k --size=32M --iodepth=16 --rate_iops=100,100 &
fio=$!
for round in 1 2 3; do
    sleep 1
    nvme reset "$CTRL" || fail "reset $round"
    wait_for 10 is_live
done
kill -0 $fio || fail "fio ended too early"
wait $fio
[ "$(outside connections)" = "$(cat "$SYSFS/queue_count")" ] || fail "the target has $(outside connections) connections"
