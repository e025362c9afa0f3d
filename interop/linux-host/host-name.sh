#!/usr/bin/env bash
# A host may have a name of any form: one that does not begin with "nqn.", as test suites use, connects
# as the usual ones do, with an identifier of its own, and disconnects in good order.
# Outside: any target that lets any host in.
. /lab/lib.sh

for name in blktests-host 0f01fb42-9f7f-4856-b0b3-51e60b8de349 "$(printf 'h%.0s' $(seq 222))"; do
    connect --hostnqn="$name" --hostid="$(cat /proc/sys/kernel/random/uuid)"
    [ "$(cat "$SYSFS/hostnqn")" = "$name" ] || fail "the host is $(cat "$SYSFS/hostnqn")"
    is_live || fail "the controller of $name is $(cat "$SYSFS/state")"
    same_data "$DISK" 1
    disconnect
    [ -z "$(ls /sys/class/nvme)" ] || fail "a controller of $name stayed behind"
done
