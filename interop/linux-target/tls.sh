#!/usr/bin/env bash
# nvlane reaches a kernel target that requires TLS: verified data with and without digests. Another key, and a connection
# in cleartext, end with an error that says so. Debian 13's nvme-cli derives keys as libnvme before 1.16 does.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

tls_daemon
# nvmet logs each refusal.
expect_disruption
HOST=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-0000000000aa
modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
for name in tls other; do outside nvlane keys generate --tls --out $name.key >/dev/null; done
nvme check-tls-key --insert --identity=1 --hostnqn=$HOST --subsysnqn="$TARGET_NQN" --keydata="$(cat /share/files/tls.key)" >/tmp/inserted ||
    { cat /tmp/inserted; fail "nvme check-tls-key"; }
TLS=required nvmet_listen "$TARGET_NQN" 0.0.0.0 4420

for digests in '' -H -I '-H -I'; do
    # shellcheck disable=SC2086
    outside nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" --hostnqn $HOST --tls --tls-key tls.key --tls-key-compat -q 16 -o 16384 -w randrw -M 50 -P 2 -t 1 \
        --verify $digests --json perf.json >/tmp/perf || { cat /tmp/perf; fail "with digests: $digests"; }
done
refused() {
    local text=$1; shift
    ! outside nvlane identify "$OUTSIDE_ADDR/$TARGET_NQN" --hostnqn $HOST "$@" >/tmp/said 2>&1 || fail "connected with $*"
    grep -qF "$text" /tmp/said || { cat /tmp/said; fail "the error of $*"; }
}
refused 'closed the connection during the TLS handshake' --tls --tls-key other.key --tls-key-compat
refused 'closed'
