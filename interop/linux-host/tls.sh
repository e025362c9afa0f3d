#!/usr/bin/env bash
# The kernel reaches a target that requires TLS, with keys that nvme-cli puts into its keyring: discovery, a file system,
# digests, identities of both versions. Another key, and a connection in cleartext, are refused. A changed key is needed by
# new connections only: fio, which verifies its data, does not notice.
# Outside: namespace 1.
. /lab/lib.sh

tls_daemon
expect_disruption
HOSTNQN=$(cat /etc/nvme/hostnqn)
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery
# insert KEY NQN: the kernel's keyring has this key for the subsystem, and no other, as nvme-cli derives it: as libnvme
# before 1.16 does.
insert() {
    keyctl clear %:.nvme
    nvme check-tls-key --insert --identity=1 --hostnqn="$HOSTNQN" --subsysnqn="$2" --keydata="$1" >/tmp/inserted ||
        { cat /tmp/inserted; fail "nvme check-tls-key"; }
}
# insert_derived FILE VERSION: the same key as the specification derives it, which nvme-cli 2.13 does not.
insert_derived() {
    keyctl clear %:.nvme
    outside nvlane keys derive tls --key "$1" --host "$HOSTNQN" --subsystem "$TARGET_NQN" -o json >/tmp/derived
    python3 -c 'import json, subprocess, sys
key = json.load(open("/tmp/derived"))["keys"][int(sys.argv[1])]
subprocess.run(["keyctl", "padd", "psk", key["identity"], "%:.nvme"], input=bytes.fromhex(key["tls_psk"]), check=True)' \
        "$2" >/dev/null
}
key() { outside nvlane keys generate --tls --out "$1" >/dev/null; cat "/share/files/$1"; }
refused() {
    ! nvme connect "${PORTAL[@]}" -n "$TARGET_NQN" "$@" >/tmp/said 2>&1 || fail "connected with $*"
    wait_for 10 eval '[ -z "$(ls /sys/class/nvme)" ]'
}

KEY=$(key tls.key)
outside tls required tls.key
insert "$KEY" $DISCOVERY
nvme discover -t tcp -a "$TARGET_ADDR" -s "$DISCOVERY_PORT" --tls >/tmp/log
has_line "$TARGET_NQN" </tmp/log
has_line 'treq: *required' </tmp/log

insert "$KEY" "$TARGET_NQN"
connect --tls
[ "$(sed -n 's/^TlsCurrTxSw\s*//p' /proc/net/tls_stat)" -ge 2 ] || fail "no queue is encrypted: $(cat /proc/net/tls_stat)"
mkfs.ext4 -q "$DISK"
mount "$DISK" /mnt
write_files /mnt
umount /mnt
disconnect
connect --tls --hdr-digest --data-digest
mount -o ro "$DISK" /mnt
check_files /mnt
umount /mnt
disconnect
for version in 0 1; do
    insert_derived tls.key $version
    connect --tls
    mount -o ro "$DISK" /mnt
    check_files /mnt
    umount /mnt
    disconnect
done

# In cleartext, with a key that is not the target's, and without a key.
refused
insert "$(key other.key)" "$TARGET_NQN"
refused --tls
keyctl clear %:.nvme
refused --tls

insert "$KEY" "$TARGET_NQN"
connect --tls
verified_fio --name=rotation --filename="$DISK" --rw=randrw --bs=4k --size=4M --iodepth=4 --loops=2 & FIO=$!
sleep 1
NEW=$(key new.key)
outside tls required new.key
wait $FIO
# The kernel has the key of before, which is not the target's any more.
disconnect
refused --tls
insert "$NEW" "$TARGET_NQN"
connect --tls
same_data "$DISK" 1
