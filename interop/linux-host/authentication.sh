#!/usr/bin/env bash
# The kernel authenticates itself by DH-HMAC-CHAP on each of its queues, and the target to it: with each hash function
# and each Diffie-Hellman group (the larger ones with one hash function each), and without a group. A wrong secret, or none, is refused. A changed secret is needed by new
# connections only, and the one of before is accepted for a while.
# Outside: namespace 1.
. /lab/lib.sh

grep -Eq '^CONFIG_NVME(_HOST)?_AUTH=' "/lib/modules/$(uname -r)/config" || skip "this kernel is built without authentication"
# Kernels before 6.7 truncate keys to the length of the secret: this way they have that length anyway.
key() { nvme gen-dhchap-key --key-length=32 --hmac=1 --nqn="$1" >"/share/files/$2"; }
HOSTNQN=$(cat /etc/nvme/hostnqn)
key "$HOSTNQN" host.key
key "$TARGET_NQN" controller.key
HOST_KEY=$(cat /share/files/host.key)
CONTROLLER_KEY=$(cat /share/files/controller.key)
refused() {
    ! nvme connect "${PORTAL[@]}" -n "$TARGET_NQN" "$@" >/tmp/said 2>&1 || fail "connected with $*"
    wait_for 10 eval '[ -z "$(ls /sys/class/nvme)" ]'
    [ "$(outside connections)" = 0 ] || wait_for 5 eval '[ "$(outside connections)" = 0 ]'
}

expect_disruption
# One hash function for each of the larger groups, in which an emulated guest computes for seconds.
# Not the last group with which the wrong secrets are tried: secrets have to change then.
declare -A groups=([sha256]="ffdhe2048 null" [sha384]="null ffdhe2048 ffdhe3072" [sha512]="null ffdhe2048")
if whole; then groups[sha256]+=" ffdhe6144" groups[sha384]+=" ffdhe8192" groups[sha512]+=" ffdhe4096"; fi
for hash in "${!groups[@]}"; do
    for group in ${groups[$hash]}; do
        # One I/O queue for the larger ones.
        case $group in null | ffdhe2048) queues=$(nproc) ;; *) queues=1 ;; esac
        outside secrets host.key controller.key "$hash" "$group"
        connect --nr-io-queues="$queues" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$CONTROLLER_KEY"
        is_live || fail "$hash, $group: the controller is $(cat "$SYSFS/state")"
        [ "$(cat "$SYSFS/queue_count")" = $((queues + 1)) ] || fail "$(cat "$SYSFS/queue_count") queues"
        same_data "$DISK" 1
        disconnect
    done
done

outside secrets host.key controller.key sha256 ffdhe2048
refused
refused --dhchap-secret="$(nvme gen-dhchap-key --key-length=32 --hmac=1 --nqn="$HOSTNQN")"
refused --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$HOST_KEY"

# The kernel authenticates again on each queue when its secret is written, while it reads.
connect --dhchap-secret="$HOST_KEY"
failures() { dmesg | grep -cE "authentication failed" || true; }
before=$(failures)
dd if="$DISK" of=/dev/null bs=4k iflag=direct status=none &
for _ in 1 2 3; do
    echo "$HOST_KEY" >"$SYSFS/dhchap_secret"
    sleep 1
done
wait $! || fail "a read while the host authenticates again"
# Read whole: with -q grep may end before dmesg has written all, which counts as a failure.
dmesg | grep "re-authenticating controller" >/dev/null || fail "the kernel has not authenticated again"
[ "$(failures)" = "$before" ] || fail "a refusal"
is_live || fail "the controller is $(cat "$SYSFS/state")"
same_data "$DISK" 1
disconnect

# Another secret: who is connected stays, and who connects has either.
connect --dhchap-secret="$HOST_KEY"
key "$HOSTNQN" new.key
outside secrets new.key controller.key sha256 ffdhe2048
same_data "$DISK" 1
nvme reset "$CTRL"
wait_for 20 is_live
same_data "$DISK" 1
disconnect
connect --dhchap-secret="$(cat /share/files/new.key)"
same_data "$DISK" 1
