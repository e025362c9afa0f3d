#!/usr/bin/env bash
# A host that falls silent loses its association: its packets to the target are dropped, the
# target closes all connections by itself after the keep-alive timeout and not before, and
# the kernel reconnects when packets flow again.
# Outside: namespace 1; says how many connections the target holds.
. /lab/lib.sh

expect_disruption
connect --keep-alive-tmo 6 --reconnect-delay 1 --ctrl-loss-tmo 60
same_data "$DISK" 2
device=eth0
! stand_in || device=lo
[ "$(outside connections)" = 3 ] || fail "$(outside connections) connections"
modprobe -a sch_ingress cls_flower act_gact
tc qdisc add dev $device clsact
tc filter add dev $device egress protocol ip flower ip_proto tcp dst_port "$TARGET_PORT" action drop
# No traffic at all: the timer runs from the last command the target saw.
sleep 2
[ "$(outside connections)" = 3 ] || fail "$(outside connections) connections after 2 s"
wait_for 20 eval '[ "$(outside connections)" = 0 ]'
tc qdisc del dev $device clsact
wait_for 30 is_live
wait_for 10 eval '[ "$(outside connections)" = 3 ]'
dd if="$DISK" bs=1M count=2 iflag=direct status=none | cmp - /tmp/data || fail "data differs"
