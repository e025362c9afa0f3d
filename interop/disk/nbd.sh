#!/usr/bin/env bash
# The kernel's own NBD client on `nvlane attach nbd`, over two connections: sizes, blocks and limits as the namespace has them, data, a
# file system that is whole after a remount, fstrim that gives memory back, verified load, a flush for each fsync.
. /lab/lib.sh

stand_in && skip 'nothing stands in for nvlane target'
modprobe nbd || skip 'no nbd in this kernel'
export NVLANE=/tmp/nvlane
cp /share/nvlane $NVLANE
# shellcheck disable=SC2016
"$NVLANE" target --cores 0 --listen 127.0.0.1:4420 --namespace file:/tmp/disk?size=96M \
    --run '"$NVLANE" attach nbd "$NVLANE_ADDR" --listen 10809' >/tmp/target.log 2>&1 & TARGET=$!
serves() { grep -q '^nbd:' /tmp/target.log; }
wait_for 60 serves

cat >/tmp/client.py <<'PYTHON'
"""What nbd-client does: negotiates, gives the sockets to the kernel, and stays until the device is disconnected."""
import fcntl, socket, struct, sys

SET_SOCK, SET_BLOCK, DO_IT, SET_BLOCKS, SET_TIMEOUT, SET_FLAGS = 0xAB00, 0xAB01, 0xAB03, 0xAB07, 0xAB09, 0xAB0A


def connect():
    connection = socket.create_connection(("127.0.0.1", 10809))
    take = lambda count: connection.recv(count, socket.MSG_WAITALL)
    magic, option_magic, flags = struct.unpack(">8sQH", take(18))
    assert magic == b"NBDMAGIC" and flags & 1, (magic, flags)
    connection.sendall(struct.pack(">I", flags & 3))
    # The default export, with its block sizes.
    data = struct.pack(">IHH", 0, 1, 3)
    connection.sendall(struct.pack(">QII", option_magic, 7, len(data)) + data)
    told = {}
    while True:
        _, _, kind, length = struct.unpack(">QIII", take(20))
        payload = take(length) if length else b""
        if kind == 1:
            break
        assert kind == 3, (kind, payload)
        told[struct.unpack(">H", payload[:2])[0]] = payload[2:]
    size, flags = struct.unpack(">QH", told[0])
    return connection, size, flags, struct.unpack(">III", told[3])[0]


device = open("/dev/nbd0", "r+b", buffering=0)
connections = [connect() for _ in range(2)]
for connection, *_ in connections:
    fcntl.ioctl(device, SET_SOCK, connection.fileno())
_, size, flags, block = connections[0]
fcntl.ioctl(device, SET_BLOCK, block)
fcntl.ioctl(device, SET_BLOCKS, size // block)
fcntl.ioctl(device, SET_TIMEOUT, 120)
fcntl.ioctl(device, SET_FLAGS, flags)
print(f"{size} bytes in blocks of {block}, flags {flags:#x}", flush=True)
fcntl.ioctl(device, DO_IT, 0)
PYTHON
python3 /tmp/client.py >/tmp/client.log 2>&1 & CLIENT=$!
has_size() { [ "$(bytes_of /dev/nbd0)" = $((96 << 20)) ]; }
wait_for 60 has_size || true
say "$(cat /tmp/client.log)"
[ "$(cat /sys/block/nbd0/queue/logical_block_size)" = 4096 ] || fail 'the block size'
[ "$(cat /sys/block/nbd0/queue/write_cache)" = 'write back' ] || fail 'no flush'
[ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ] || fail 'no discard'
same_data /dev/nbd0 8

mkfs.ext4 -q -F /dev/nbd0
mount /dev/nbd0 /mnt
write_files /mnt
umount /mnt
mount /dev/nbd0 /mnt
check_files /mnt
verified_fio --name=fio --directory=/mnt --size=8M --rw=randwrite --bsrange=4k-64k --iodepth=8
head -c 24M /dev/urandom >/mnt/file
sync
full=$(du -k /tmp/disk | cut -f1)
rm /mnt/file /mnt/fio*
sync
fstrim /mnt
trimmed=$(du -k /tmp/disk | cut -f1)
say "with 24 MiB in a file $full KiB, without it $trimmed"
[ "$trimmed" -le $((full - 20 * 1024)) ] || fail "only $((full - trimmed)) KiB came back"
umount /mnt
fsck.ext4 -fn /dev/nbd0 >/tmp/fsck 2>&1 || { cat /tmp/fsck; fail 'fsck.ext4'; }
python3 -c '
import fcntl
with open("/dev/nbd0", "rb", buffering=0) as device:
    fcntl.ioctl(device, 0xAB08, 0)'
wait $CLIENT || { cat /tmp/client.log; fail 'the client'; }
kill $TARGET
wait $TARGET || true
