#!/usr/bin/env bash
# The target goes away under verified load, twice, and comes back: nvlane reconnects, its load
# ends without an error, and what was acknowledged is there.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

expect_disruption
modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" -q 8 -o 4096 -w randrw -M 50 -P 2 -t 20 --verify --json perf.json >/tmp/perf &
perf=$!
for away in 0 4; do
    sleep 4
    say "gone for $away s"
    nvmet_hang_up "$TARGET_NQN" 4420
    sleep $away
    nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
done
wait $perf || fail "nvlane perf"
stand_in || perf_is_good
