#!/usr/bin/env bash
# The ANA group of the namespace becomes inaccessible under verified load, changes, and is
# accessible again, twice: nvlane holds its commands meanwhile, and none fails.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

# nvmet logs each command that it refuses.
expect_disruption

modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
state=$NVMET/ports/4420/ana_groups/1/ana_state
outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" -q 8 -o 4096 -w randrw -M 50 -P 2 -t 20 --verify --json perf.json >/tmp/perf &
perf=$!
sleep 3
for next in inaccessible change optimized inaccessible non-optimized; do
    say "$next"
    echo $next >"$state"
    sleep 3
done
wait $perf || { cat /tmp/perf; fail "nvlane perf"; }
stand_in || perf_is_good
