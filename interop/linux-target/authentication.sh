#!/usr/bin/env bash
# nvlane authenticates itself to the kernel's target by DH-HMAC-CHAP on each of its queues, and the target to it: with
# each hash function and each Diffie-Hellman group (the larger ones with one hash function each), and without a group. Wrong secrets end with an error that says so.
# Outside: nvlane, which reaches nvmet at $OUTSIDE_ADDR.
. /lab/lib.sh

grep -q '^CONFIG_NVME_TARGET_AUTH=' "/lib/modules/$(uname -r)/config" || skip "this kernel's target is built without authentication"
# nvmet logs each refusal.
expect_disruption

HOST=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-0000000000aa
ENTRY=$NVMET/hosts/$HOST
modprobe brd rd_nr=1 rd_size=65536
nvmet_namespace "$TARGET_NQN" 1 /dev/ram0
nvmet_listen "$TARGET_NQN" 0.0.0.0 4420
mkdir -p "$ENTRY"
echo 0 >"$NVMET/subsystems/$TARGET_NQN/attr_allow_any_host"
ln -s "$ENTRY" "$NVMET/subsystems/$TARGET_NQN/allowed_hosts/"

key() { nvme gen-dhchap-key --key-length=32 --hmac="$2" --nqn="$3" >"/share/files/$1"; }
key host.key 1 $HOST
key controller.key 0 "$TARGET_NQN"
key wrong.key 1 $HOST
echo -n "$(cat /share/files/host.key)" >"$ENTRY/dhchap_key"

load=(nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" --hostnqn $HOST -q 4 -o 4096 -w randrw -M 50 -P 2 --verify --json perf.json)
for hash in sha256 sha384 sha512; do
    for group in null ffdhe2048; do
        echo "hmac($hash)" >"$ENTRY/dhchap_hash"
        echo $group >"$ENTRY/dhchap_dhgroup"
        outside "${load[@]}" -t 0.5 --dhchap-secret host.key >/tmp/perf || { cat /tmp/perf; fail "$hash, $group"; }
    done
done
stand_in && exit
# One hash function for each of the larger groups, in which an emulated guest computes for seconds.
declare -A groups=([sha384]=ffdhe3072)
if whole; then groups=([sha256]=ffdhe6144 [sha384]="ffdhe3072 ffdhe8192" [sha512]=ffdhe4096); fi
for hash in "${!groups[@]}"; do
    for group in ${groups[$hash]}; do
        echo "hmac($hash)" >"$ENTRY/dhchap_hash"
        echo $group >"$ENTRY/dhchap_dhgroup"
        outside nvlane identify "$OUTSIDE_ADDR/$TARGET_NQN" --hostnqn $HOST --dhchap-secret host.key >/tmp/said ||
            { cat /tmp/said; fail "$hash, $group"; }
    done
done
echo ffdhe2048 >"$ENTRY/dhchap_dhgroup"
echo -n "$(cat /share/files/controller.key)" >"$ENTRY/dhchap_ctrl_key"
outside "${load[@]}" -t 0.5 --dhchap-secret host.key --dhchap-ctrl-secret controller.key >/tmp/perf ||
    { cat /tmp/perf; fail "both ways"; }

# Each queue authenticates again while it is in use. nvmet ends the association of a host that it refuses then, and the
# host comes back when the secret is right again.
again=(nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" --hostnqn $HOST --dhchap-secret host.key --dhchap-ctrl-secret controller.key
    --reauthenticate 0.5 -q 4 -o 4096 -w randread -P 2 --ctrl-loss-timeout 60)
outside "${again[@]}" -t 4 >/tmp/perf 2>&1 || { cat /tmp/perf; fail "authenticating again"; }
! grep -q "refuses reauthentication" /tmp/perf || { cat /tmp/perf; fail "refused when authenticating again"; }
outside "${again[@]}" -t 10 >/tmp/perf 2>&1 &
sleep 3
echo -n "$(cat /share/files/wrong.key)" >"$ENTRY/dhchap_key"
sleep 3
echo -n "$(cat /share/files/host.key)" >"$ENTRY/dhchap_key"
wait $! || { cat /tmp/perf; fail "a host that was refused for a while"; }
# nvmet may shut the connection down before its refusal is sent.
grep -qE "refuses reauthentication of the host|association lost .*authentication failed" /tmp/perf ||
    { cat /tmp/perf; fail "no refusal"; }

# refused TEXT OPTION...: nvlane identify with these options fails, and says this.
refused() {
    local text=$1; shift
    ! outside nvlane identify "$OUTSIDE_ADDR/$TARGET_NQN" --hostnqn $HOST "$@" >/tmp/said 2>&1 || fail "connected with $*"
    grep -qF "$text" /tmp/said || { cat /tmp/said; fail "the error of $*"; }
}
refused "a secret is needed"
# nvmet may shut the connection down before its refusal is sent.
refused "is it the secret of $HOST?" --dhchap-secret wrong.key
refused "the host refuses the controller" --dhchap-secret host.key --dhchap-ctrl-secret wrong.key
