#!/usr/bin/env bash
# Power cuts at every write: what nvlane has answered as durable is on the medium, with both engines. dm-log-writes
# keeps a write only once a flush or FUA has made it durable. On the device: FUA writes, zeroing and flushes of four
# queues, and fio with O_DSYNC and with flushes, a cut after each logged write. Above it: ext4 on the exported namespace,
# files with fsync, from fio and others. Below it: namespaces in files on ext4, from their creation on, a block and a
# pair at a time.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane target'
NVLANE=/tmp/nvlane
# From the share each page would come by itself.
cp /share/nvlane $NVLANE
MIB=32
modprobe -r brd
modprobe brd rd_nr=2 rd_size=$((256 << 10))
modprobe -a loop dm-log-writes
TARGET_ADDR=127.0.0.1 TARGET_PORT=4420
PORTAL=(-t tcp -a "$TARGET_ADDR" -s "$TARGET_PORT")

# logged: an empty device that logs, /dev/mapper/logged. unlogged: ends it; its log is complete then.
logged() {
    dd if=/dev/zero of=/dev/ram0 bs=1M count=$MIB status=none
    dmsetup --noudevsync create logged --table "0 $((MIB * 2048)) log-writes /dev/ram0 /dev/ram1"
    dmsetup mknodes
}
unlogged() { dmsetup --noudevsync remove --retry logged; }
mark() { dmsetup message logged 0 mark "acked-$1"; }

# serve ENGINE STORAGE...: a target with these namespaces. It runs on one processor: dm-log-writes gives all completed
# writes to the first flush that begins and logs them when that flush ends, so a second flush that ends before it would be
# answered before the log has them.
serve() {
    local engine=$1 storage; shift
    {
        printf 'machine = "lab"\n'
        # Its clients need keys.
        [[ $* != *kv:* ]] || printf 'memcached = ["127.0.0.1:11211"]\n'
        printf '[reactors]\ncount = 1\nengine = "%s"\n' "$engine"
        printf '[[listener]]\naddress = "127.0.0.1:4420"\n[[subsystem]]\nnqn = "%s"\nhosts = "any"\n' "$TARGET_NQN"
        for storage; do printf '[[subsystem.namespace]]\nstorage = "%s"\n' "$storage"; done
    } >/tmp/nvlane.toml
    taskset -c 0 "$NVLANE" target --config /tmp/nvlane.toml >/tmp/target.log 2>&1 & TARGET=$!
    wait_for 60 grep -q ' ready ' /tmp/target.log
}
end_target() { kill "$TARGET"; wait "$TARGET" || { cat /tmp/target.log; fail 'the target'; }; }

# An image of the device as of each cut, and how it is judged: as a file system, then its files by `judge_files N`.
IMAGE=/tmp/image
cat >/tmp/judge <<'JUDGE'
#!/usr/bin/env bash
set -eu
cp --sparse=always /tmp/image /tmp/cut
# 1: the journal was replayed, and that was all.
e2fsck -fp /tmp/cut >/tmp/fsck 2>&1 || [ $? = 1 ] || { cat /tmp/fsck; exit 1; }
mkdir -p /tmp/cut.d
mount -o loop /tmp/cut /tmp/cut.d
status=0
/tmp/judge-files /tmp/cut.d "$1" || status=1
umount /tmp/cut.d
exit $status
JUDGE
chmod +x /tmp/judge
# cuts EVERY PROBLEM: at each mark, and after each write of this number.
cuts() {
    truncate -s 0 $IMAGE && truncate -s ${MIB}M $IMAGE
    python3 /lab/power_cuts.py at-marks /dev/ram1 $IMAGE "$1" /tmp/judge || fail "$2"
}

on_device() {
    logged
    serve "$1" device:/dev/mapper/logged
    connect --nr-io-queues 4
    python3 /lab/power_cuts.py load "$DISK" /tmp/ops
    disconnect
    end_target
    unlogged
    python3 /lab/power_cuts.py judge /dev/ram1 /tmp/ops || fail "$1: a cut loses what was durable"
    say "$1: on the device"
}

# The jobs that power_cuts.py knows as FIO_JOBS, on a disk or an image of it.
cat >/tmp/jobs.fio <<'FIO'
[global]
filename=${FILE}
direct=${DIRECT}
bs=4k
size=1m
rw=randwrite
verify=crc32c
do_verify=0
end_fsync=1
ioengine=psync
clocksource=clock_gettime
[dsync]
sync=dsync
offset=0
[dsync-too]
sync=dsync
offset=1m
[fdatasync]
fdatasync=4
offset=2m
[fsync]
fsync=8
offset=3m
FIO
on_device_by_fio() {
    local seed
    logged
    serve "$1" device:/dev/mapper/logged
    connect --nr-io-queues 4
    # The blocks in another order each time.
    for seed in 1 2; do
        FILE=$DISK DIRECT=1 fio --output=/tmp/fio /tmp/jobs.fio --randseed="$seed" || { cat /tmp/fio; fail "$1: fio"; }
    done
    disconnect
    end_target
    unlogged
    python3 /lab/power_cuts.py judge-fio /dev/ram1 || fail "$1: a cut loses what fio had made durable"
    truncate -s 0 $IMAGE && truncate -s ${MIB}M $IMAGE
    python3 /lab/power_cuts.py at-marks /dev/ram1 $IMAGE 0 true
    FILE=$IMAGE DIRECT=0 fio --output=/tmp/fio /tmp/jobs.fio --randseed="$seed" --verify_only ||
        { cat /tmp/fio; fail "$1: fio finds other data on what the log has"; }
    say "$1: on the device, by fio"
}

# Files that are fsynced in a file system on the namespace.
cat >/tmp/file.fio <<'FIO'
[file]
filename=${FILE}
bs=4k
size=128k
rw=randwrite
verify=crc32c
do_verify=0
ioengine=psync
fsync=4
end_fsync=1
FIO
above() {
    logged
    serve "$1" device:/dev/mapper/logged
    connect --nr-io-queues 2
    mkfs.ext4 -q -J size=4 "$DISK"
    mount "$DISK" /mnt
    for n in $(seq 6); do
        head -c $((n * 4000)) /dev/urandom >/mnt/part
        sync /mnt/part; mv /mnt/part "/mnt/$n"; sync /mnt
        mark "$n"
    done
    ( cd /mnt && md5sum $(seq 6) ) >/tmp/sums
    for n in 7 8; do
        FILE=/mnt/$n fio --output=/tmp/fio /tmp/file.fio || { cat /tmp/fio; fail "$1: fio"; }
        sync /mnt
        mark "$n"
    done
    umount /mnt
    disconnect
    end_target
    unlogged
    cat >/tmp/judge-files <<'FILES'
#!/usr/bin/env bash
cd "$1" && head -n "$2" /tmp/sums | md5sum --quiet -c || exit 1
for n in $(seq 7 "$2"); do
    FILE=$1/$n fio --output=/tmp/fio /tmp/file.fio --verify_only || { cat /tmp/fio; exit 1; }
done
FILES
    chmod +x /tmp/judge-files
    cuts 80 "$1: a cut loses a file that was fsynced"
    say "$1: above"
}

# Namespaces in files of a file system.
below() {
    logged
    mkfs.ext4 -q -J size=4 /dev/mapper/logged
    mount /dev/mapper/logged /mnt
    serve "$1" 'file:/mnt/disk?size=1M&lba=4096' 'kv:file:/mnt/pairs?size=4M&memory=4M'
    # The files are created, and no command has been answered yet.
    mark 0
    connect --nr-io-queues 1
    for n in $(seq 8); do
        printf '[block %d]' "$n" >/tmp/block
        truncate -s 4096 /tmp/block
        nvme write "$DISK" --start-block=$((n * 3)) --block-count=0 --data-size=4096 --data=/tmp/block \
            --force-unit-access >/dev/null 2>&1
        value="[key $n]"
        printf 'set %d 0 0 %d\r\n%s\r\nquit\r\n' "$n" "${#value}" "$value" | nc -w 5 127.0.0.1 11211 | has_line STORED
        mark "$n"
    done
    disconnect
    end_target
    umount /mnt
    unlogged
    cat >/tmp/judge-files <<'FILES'
#!/usr/bin/env bash
set -eu
[ "$(stat -c %s "$1/disk") $(stat -c %s "$1/pairs")" = "$((1 << 20)) $((4 << 20))" ]
[ "$(head -c 8 "$1/pairs")" = nvlanekv ]
debugfs -R 'ea_list /disk' /tmp/cut 2>/dev/null | grep user.nvlane.identity >/dev/null
blocks=$(tr -d '\0' <"$1/disk") pairs=$(tr -d '\0' <"$1/pairs")
for n in $(seq "$2"); do
    [[ $blocks == *"[block $n]"* && $pairs == *"[key $n]"* ]]
done
FILES
    chmod +x /tmp/judge-files
    cuts 0 "$1: a cut loses what was durable in a file"
    say "$1: below"
}

on_device uring
if whole; then
    on_device epoll
    on_device_by_fio uring
    above uring
fi
below epoll
modprobe -r brd
