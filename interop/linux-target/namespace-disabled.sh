#!/usr/bin/env bash
# The namespace is disabled under verified load, for 0 s and for 4 s, and enabled again: nvlane
# holds its commands meanwhile, and none fails.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

# nvmet logs each command that it refuses.
expect_disruption

modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
enable=$NVMET/subsystems/$TARGET_NQN/namespaces/1/enable
outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" -q 8 -o 4096 -w randrw -M 50 -P 2 -t 18 --verify --json perf.json >/tmp/perf &
perf=$!
for away in 0 4; do
    sleep 4
    say "disabled for $away s"
    echo 0 >"$enable"
    sleep $away
    echo 1 >"$enable"
done
wait $perf || { cat /tmp/perf; fail "nvlane perf"; }
stand_in || perf_is_good
