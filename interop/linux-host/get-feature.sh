#!/usr/bin/env bash
# nvme get-feature: queues, write cache, events, keep-alive and host identity are what the
# kernel negotiated; an unknown feature is refused.
# Features that hosts of PCIe controllers ask for (error recovery, interrupts) have values, too.
# Outside: any target.
. /lab/lib.sh

connect --keep-alive-tmo 7
# feature FID [OPTION...]: its current value.
feature() { nvme get-feature "$CTRL" -f "$@" | sed -n 's/.*Current value: *\(0x\)\{0,1\}\([0-9a-f]*\).*/0x\2/p'; }
queues=$(feature 7)
[ $((queues & 0xffff)) -ge 1 ] && [ $((queues >> 16)) -ge 1 ] || fail "number of queues $queues"
[ $(($(feature 6) & 1)) = 1 ] || fail "no volatile write cache: $(feature 6)"
[ $(($(feature 0xb) & 0x100)) != 0 ] || fail "namespace events are off: $(feature 0xb)"
[ $(($(feature 0xf))) -ge 7000 ] || fail "keep-alive $(feature 0xf) ms"
nvme get-feature "$CTRL" -f 0x81 -l 16 -c 1 -b | cmp - <(tr -d - </etc/nvme/hostid | sed 's/../\\x&/g' | xargs -0 printf '%b' | head -c 16) ||
    fail "another host id"
! nvme get-feature "$CTRL" -f 0xbf >/tmp/refused 2>&1 || fail "feature 0xbf exists"
grep -q 'Invalid Field' /tmp/refused || fail "$(cat /tmp/refused)"
stand_in || [ "$(feature 0x1)" ] || fail "no arbitration feature"
for fid in 5 8 9; do
    stand_in || [ "$(feature $fid)" ] || fail "no feature $fid"
done
