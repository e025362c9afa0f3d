#!/usr/bin/env bash
# nvlane discover reads nvmet's discovery log: both subsystems, and the address it names.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_namespace "$TARGET_NQN:other" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
nvmet_listen "$TARGET_NQN:other" 0.0.0.0 4420
outside nvlane discover "$OUTSIDE_ADDR" -o json >/tmp/log || fail "nvlane discover"
for nqn in "$TARGET_NQN" "$TARGET_NQN:other"; do
    stand_in || grep -qF "\"$nqn\"" /tmp/log || { cat /tmp/log; fail "$nqn is not listed"; }
done
stand_in || grep -qF 10.0.2.15 /tmp/log || { cat /tmp/log; fail "the address is not listed"; }
