#!/usr/bin/env bash
# In the guest of linux.sh.
set -eu
. /lab/lib.sh
report() { echo "guest: [$SECONDS s] $*"; }
fail() { report "FAIL: $*"; exit 1; }

# On a busy machine an emulated kernel may stand still for seconds.
modprobe -a nvme-tcp ext4 xfs
echo 240 > /sys/module/nvme_core/parameters/io_timeout
install -m 755 /share/fsx /tmp/fsx
connect
[ "$(bytes_of "$DISK")" = $((320 << 20)) ] || fail 'the size'

# Random blocks are written, read back and written anew for 40 s; the OSD dies after a quarter of that.
(sleep 10; touch /share/kill) &
env --ignore-signal=PIPE fio --eta=never --output=/tmp/fio.json --output-format=json --filename="$DISK" --direct=1 --ioengine=libaio --iodepth=8 \
    --name=killed --rw=randwrite --bsrange=4k-64k --size=8M --verify=crc32c --verify_fatal=1 --time_based --runtime=40 --end_fsync=1 ||
    { cat /tmp/fio.json; fail 'fio while an OSD is killed'; }
[ -e /share/kill ] || fail 'fio has ended before the OSD'
summary=$(python3 -c '
import json
text = open("/tmp/fio.json").read()
job = json.loads(text[text.index("{"):])["jobs"][0]
ios = [job[kind]["total_ios"] for kind in ("write", "read")]
longest = max(job[kind]["clat_ns"]["max"] for kind in ("write", "read")) / 1e9
assert job["error"] == 0 and min(ios) > 0, (job["error"], ios)
print(f"{ios[0]} writes, {ios[1]} reads compared, none wrong, the longest took {longest:.1f} s")')
report "an OSD killed under load: $summary"
touch /share/restart

cat > /tmp/fsx.toml <<'TOML'
flen = 1048576
[weights]
close_open = 1
invalidate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 3
sendfile = 1
copy_file_range = 1
TOML
# Files are there after a sync, a remount and a fresh connect; then a file is written, cut, mapped and punched at random, and checked
# at each step.
exercised() { # KIND CHECK...
    wipefs --quiet --all "$DISK"
    "mkfs.$1" -q "$DISK"
    write_and_reconnect
    mount "$DISK" /mnt
    check_files /mnt
    /tmp/fsx -f /tmp/fsx.toml -S "$SEED" -N "$STEPS" -P /tmp /mnt/exercised > /tmp/fsx.log 2>&1 ||
        { tail -n 40 /tmp/fsx.log; fail "fsx on $1, seed $SEED"; }
    sync
    fstrim /mnt
    umount /mnt
    "${@:2}" "$DISK" > /tmp/check.log 2>&1 || { cat /tmp/check.log; fail "$*"; }
    mount -o ro "$DISK" /mnt
    check_files /mnt
    umount /mnt
    report "$1: files, $STEPS steps of fsx (seed $SEED), $*"
}
SEED=$((RANDOM + 1)) STEPS=3000
exercised ext4 fsck.ext4 -fn
exercised xfs xfs_repair -n

blockdev --flushbufs "$DISK"
nvme flush "$DISK" > /dev/null
dd if="$DISK" bs=1M iflag=direct status=none | sha256sum | cut -c1-64 > /share/sum
disconnect
report 'the device was read'
