#!/usr/bin/env bash
# nvme connect needs no option for queues or sizes: the controller is live with one I/O queue per CPU, its
# namespace has the configured size, and nvme disconnect leaves nothing behind.
# Outside: namespace 1 of 64 MiB.
. /lab/lib.sh

connect
is_live || fail "the controller is $(cat "$SYSFS/state")"
[ "$(cat "$SYSFS/queue_count")" = $(($(nproc) + 1)) ] || fail "$(cat "$SYSFS/queue_count") queues"
[ "$(bytes_of "$DISK")" = $((64 << 20)) ] || fail "$DISK has $(bytes_of "$DISK") bytes"
[ "$(outside connections)" = "$(cat "$SYSFS/queue_count")" ] || fail "the target has $(outside connections) connections"
same_data "$DISK" 8
disconnect
[ -z "$(ls /sys/class/nvme)" ] || fail "a controller stayed behind"
wait_for 5 eval '[ "$(outside connections)" = 0 ]'
