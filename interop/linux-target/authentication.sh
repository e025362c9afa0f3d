#!/usr/bin/env bash
# nvlane authenticates itself to the kernel's target by DH-HMAC-CHAP on each of its queues, and the target to it: with
# each hash function, with and without a Diffie-Hellman group. Wrong secrets end with an error that says so.
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

load=(nvlane perf "$OUTSIDE_ADDR/$TARGET_NQN?ns=1" --hostnqn $HOST -q 4 -o 4096 -w randrw -M 50 -P 2 -t 1 --verify --json perf.json)
for hash in sha256 sha384 sha512; do
    for group in null ffdhe2048; do
        echo "hmac($hash)" >"$ENTRY/dhchap_hash"
        echo $group >"$ENTRY/dhchap_dhgroup"
        outside "${load[@]}" --dhchap-secret host.key >/tmp/perf || { cat /tmp/perf; fail "$hash, $group"; }
    done
done
stand_in && exit
for group in ffdhe4096 ffdhe8192; do
    echo $group >"$ENTRY/dhchap_dhgroup"
    outside nvlane identify "$OUTSIDE_ADDR/$TARGET_NQN" --hostnqn $HOST --dhchap-secret host.key >/tmp/said || { cat /tmp/said; fail $group; }
done
echo ffdhe2048 >"$ENTRY/dhchap_dhgroup"
echo -n "$(cat /share/files/controller.key)" >"$ENTRY/dhchap_ctrl_key"
outside "${load[@]}" --dhchap-secret host.key --dhchap-ctrl-secret controller.key >/tmp/perf ||
    { cat /tmp/perf; fail "both ways"; }

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
