#!/usr/bin/env bash
# A connect to an unknown subsystem is refused at once and for good, and leaves nothing
# behind; the known one is there all the same.
# Outside: any target.
. /lab/lib.sh

expect_disruption
start=$SECONDS
! nvme connect "${PORTAL[@]}" -n nqn.2024-01.example:unknown >/tmp/said 2>&1 || fail "connected to an unknown subsystem"
[ $((SECONDS - start)) -le 5 ] || fail "refused only after $((SECONDS - start)) s"
[ -z "$(ls /sys/class/nvme)" ] || fail "a controller stayed behind"
connect
