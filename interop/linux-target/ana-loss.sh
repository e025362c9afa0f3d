#!/usr/bin/env bash
# The ANA group of the namespace is lost for good: nvlane's commands end at once, and it says why.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

# nvmet logs each command that it refuses.
expect_disruption

modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
echo persistent-loss >"$NVMET/ports/4420/ana_groups/1/ana_state"
if outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" -q 1 -o 4096 -w read -t 1 >/tmp/perf 2>&1; then
    stand_in || { cat /tmp/perf; fail "nvlane perf succeeds"; }
fi
stand_in || grep -qi "301\|persistent loss" /tmp/perf || { cat /tmp/perf; fail "the reason is not reported"; }
