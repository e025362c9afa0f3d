#!/usr/bin/env bash
# nvme connect-all follows the discovery log to the subsystem, at the address that the
# log advertises, and its namespace can be read and written.
# Outside: a target whose advertised address is $TARGET_ADDR; namespace 1.
. /lab/lib.sh

nvme connect-all -t tcp -a "$TARGET_ADDR" -s "$DISCOVERY_PORT"
nvme list-subsys -o json >/tmp/subsystems
./holds </tmp/subsystems 'sum(s["NQN"] == env["TARGET_NQN"] for host in it for s in host["Subsystems"]) == 1'
for SYSFS in /sys/class/nvme/*; do [ "$(cat "$SYSFS/subsysnqn")" != "$TARGET_NQN" ] || break; done
[ "$(cat "$SYSFS/subsysnqn")" = "$TARGET_NQN" ] || fail "not connected"
grep -q "traddr=$TARGET_ADDR,trsvcid=$TARGET_PORT" "$SYSFS/address" || fail "at $(cat "$SYSFS/address")"
wait_for 10 has_disk 1
same_data "$(disk_of 1)" 4
