#!/usr/bin/env bash
# Namespaces as block devices of this machine, by `nvlane attach ublk`: data, a file system, trim and zeroes; a bridge that is killed
# under load, and is started again, is no error; devices go away when they should, also mounted ones and those without a bridge.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane'
NVLANE=/tmp/nvlane
# From the share each page would come by itself.
cp /share/nvlane $NVLANE
NQN=nqn.2014-08.org.example:disk
truncate -s 256M /tmp/disk
$NVLANE --log info target --listen 127.0.0.1:4420 --nqn $NQN --namespace file:/tmp/disk?lba=512 --namespace ram:64M?lba=4096 \
    >/tmp/target.log 2>&1 & TARGET=$!
wait_for 60 grep -q ' ready ' /tmp/target.log

# attach NSID [OPTION...]: starts a bridge, and waits for its device. Sets BRIDGE and DISK.
attach() {
    local nsid=$1; shift
    : >/tmp/attached
    $NVLANE --log info attach ublk "127.0.0.1:4420/$NQN?ns=$nsid" "$@" >/tmp/attached 2>>/tmp/bridge.log & BRIDGE=$!
    wait_for 60 grep -q /dev/ublkb /tmp/attached || { tail -n 5 /tmp/bridge.log; fail "attach $nsid $*"; }
    DISK=$(cat /tmp/attached)
    QUEUE=/sys/block/${DISK#/dev/}/queue
}
# refused TEXT OPTION...: an attach that fails with this text.
refused() {
    local text=$1 status=0; shift
    $NVLANE attach ublk "$@" >/tmp/refused 2>&1 || status=$?
    [ $status != 0 ] || fail "not refused: $*"
    grep -q -e "$text" /tmp/refused || { cat /tmp/refused; fail "not told: $text"; }
}
detach() {
    kill -TERM $BRIDGE
    wait $BRIDGE || { tail -n 5 /tmp/bridge.log; fail "the bridge ends with $?"; }
    [ ! -e "$DISK" ] || fail "$DISK is still there"
}
kill_bridge() { kill -KILL $BRIDGE; wait $BRIDGE || true; }

refused 'modprobe ublk_drv' "127.0.0.1:4420/$NQN?ns=1"
grep -q 'attach nbd needs no module' /tmp/refused || fail 'no other bridge is named'
modprobe ublk_drv

attach 2
[ "$(cat $QUEUE/logical_block_size)" = 4096 ] || fail "blocks of $(cat $QUEUE/logical_block_size) bytes"
same_data "$DISK" 16
verified_fio --name=blocks --filename="$DISK" --size=16M --rw=randwrite --bs=4k --iodepth=32 --number_ios=1000
detach

attach 1
[ "$(bytes_of "$DISK")" = $((256 << 20)) ] || fail "$(bytes_of "$DISK") bytes"
[ "$(cat $QUEUE/logical_block_size)" = 512 ] || fail "blocks of $(cat $QUEUE/logical_block_size) bytes"
[ "$(cat $QUEUE/write_cache)" = 'write back' ] || fail 'no flush'
[ "$(cat $QUEUE/fua)" = 1 ] || fail 'no FUA'
[ "$(cat $QUEUE/discard_max_bytes)" -gt 0 ] || fail 'no discard'
[ "$(cat $QUEUE/write_zeroes_max_bytes)" -gt 0 ] || fail 'no write zeroes'
[ "$(ls "$QUEUE/../mq" | wc -l)" = "$(nproc)" ] || fail 'not a queue for each core'
refused "served by process $BRIDGE" "127.0.0.1:4420/$NQN?ns=1"
refused "is another device" "127.0.0.1:4420/$NQN?ns=2" --number 0
$NVLANE attach list | has_line "^ublk *$DISK .* $BRIDGE " || fail 'not listed'
same_data "$DISK" 16
full=$(stat -c %b /tmp/disk)
blkdiscard -z -o 4M -l 4M "$DISK"
blkdiscard -o 8M -l 8M "$DISK"
[ "$(stat -c %b /tmp/disk)" -le $((full - 8 * 2048)) ] || fail 'discarded blocks are still allocated'
for at in 4 8 12; do
    dd if="$DISK" bs=1M skip=$at count=4 iflag=direct status=none | cmp - <(head -c 4M /dev/zero) || fail "no zeroes at $at MiB"
done
dd if="$DISK" bs=1M count=4 iflag=direct status=none | cmp - <(head -c 4M /tmp/data) || fail 'data beside what was discarded'
say 'data, zeroes, discard'

mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$DISK"
mount "$DISK" /mnt
write_files /mnt
fstrim /mnt
for round in 1 2; do
    rm -f /mnt/fio*
    verified_fio --name=fio --directory=/mnt --size=8M --rw=randwrite --bsrange=4k-64k --iodepth=16 --numjobs=2 &
    fio=$!
    wait_for 60 test -e /mnt/fio.1.0
    kill_bridge
    # In the second round it is away for longer.
    [ $round = 1 ] || sleep 2
    attach 1
    wait $fio || fail 'fio over a bridge that was killed'
    say "fio over a bridge that was killed, $round"
done
grep -q 'is taken over' /tmp/bridge.log || fail 'nothing was taken over'
umount /mnt
mount "$DISK" /mnt
check_files /mnt
kill_bridge
attach 1
check_files /mnt
umount /mnt
fsck.ext4 -fn "$DISK" >/tmp/fsck || { cat /tmp/fsck; fail 'fsck.ext4'; }
detach
! dmesg --level=emerg,alert,crit,err,warn | grep -E 'I/O error|BUG:|WARNING:|Oops|EXT4-fs error|blocked for' || fail 'the kernel complains'

device=$($NVLANE attach ublk "127.0.0.1:4420/$NQN?ns=2" --run 'blkid -p "$NVLANE_DEVICE" >/tmp/blkid; echo "$NVLANE_DEVICE"; exit 7') ||
    [ $? = 7 ] || fail 'the exit code of --run'
[[ $device = /dev/ublkb* && ! -e $device ]] || fail "the device of --run: $device"

$NVLANE attach auto "127.0.0.1:4420/$NQN" --run 'echo "$NVLANE_DEVICE"' 2>/tmp/auto | has_line '^/dev/ublkb' || fail 'auto takes no ublk'
has_line '^kernel: left: --run is for bridges' </tmp/auto || fail 'auto does not say why'
$NVLANE attach auto "127.0.0.1:4420/$NQN" 2>/tmp/auto || { cat /tmp/auto; fail 'auto by nvme connect'; }
wait_for 30 has_disk 1
nvme disconnect -n $NQN
$NVLANE attach list | has_line '^no bridges run' || fail 'listed after their end'

attach 1 --read-only
[ "$(blockdev --getro "$DISK")" = 1 ] || fail 'not read-only'
! dd if=/dev/zero of="$DISK" bs=4k count=1 oflag=direct 2>/dev/null || fail 'a write to a read-only device'
detach

# From here on requests fail.
expect_disruption
attach 1 --number 5
[ "$DISK" = /dev/ublkb5 ] || fail "the number: $DISK"
mount "$DISK" /mnt
detach
umount /mnt
say 'a mounted device is removed'

attach 1 --no-recovery
kill_bridge
wait_for 30 eval '[ ! -e "$DISK" ]'

attach 1
mount "$DISK" /mnt
kill_bridge
( trap - ERR; head -c 4096 /dev/urandom >/mnt/lost; sync -f /mnt ) & sync=$!
sleep 1
kill -0 $sync || fail 'a request does not wait for a bridge'
$NVLANE attach ublk --remove "$DISK" || fail '--remove'
wait_for 30 eval '! kill -0 $sync'
umount /mnt
[ ! -e "$DISK" ] || fail "$DISK is still there"
say 'a device without a bridge is removed'

# The target does not answer: the end of the bridge is not later than it says, and its device goes away.
attach 1
dd if="$DISK" of=/dev/null bs=4k count=1 iflag=direct status=none
kill -STOP $TARGET
dd if="$DISK" of=/dev/null bs=4k count=1 skip=100 iflag=direct 2>/tmp/dd & dd=$!
sleep 1
start=$SECONDS
kill -TERM $BRIDGE
wait $BRIDGE || fail "the bridge ends with $?"
[ $((SECONDS - start)) -le 60 ] || fail "detach took $((SECONDS - start)) s"
! wait $dd || fail 'a read without a target'
[ ! -e "$DISK" ] || fail "$DISK is still there"
kill -CONT $TARGET
say "detached without a target after $((SECONDS - start)) s"

# As another user, with what udev would do.
chmod 666 /dev/ublk-control
: >/tmp/attached
( until chown 1000:1000 /dev/ublkc0 2>/dev/null; do :; done; until chown 1000:1000 /dev/ublkb0 2>/dev/null; do :; done ) & udev=$!
setpriv --reuid 1000 --regid 1000 --clear-groups $NVLANE --log info attach ublk "127.0.0.1:4420/$NQN?ns=2" \
    >/tmp/attached 2>>/tmp/bridge.log & BRIDGE=$!
wait_for 60 grep -q /dev/ublkb0 /tmp/attached
wait $udev
DISK=/dev/ublkb0
setpriv --reuid 1000 --regid 1000 --clear-groups dd if=/tmp/data of=$DISK bs=1M count=8 oflag=direct status=none
dd if=$DISK bs=1M count=8 iflag=direct status=none | cmp - <(head -c 8M /tmp/data) || fail "$DISK differs"
detach
say 'unprivileged'
kill -TERM $TARGET
wait $TARGET || fail 'the target'
