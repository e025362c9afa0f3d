"""vhost-user block devices that others wrote as storage of a target: exports of qemu-storage-daemon on a raw file, a qcow2 image and
nothing, and nvlane's own bridge before another target. Verified load, over a daemon that is killed and comes back as well; what
flushes promise then; a disk that grows.

Outside: NVLANE, the program; an empty working directory."""

import os
import signal
import subprocess
import time

from chain import BLOCK, CORES, VERIFY, Chain, check_image, flush, run_target, serve, start, stop, target_command

DISK = os.path.abspath("disk.sock")
CONTROL = os.path.abspath("control.sock")
STORAGE = f"vhost-user:{DISK}"


def daemon(node, queues=2, writable=True):
    """qemu-storage-daemon with one device on this node."""
    export = f"type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={DISK},num-queues={queues}"
    export += f",writable={'on' if writable else 'off'},logical-block-size=512"
    return serve(DISK, "qemu-storage-daemon", "--blockdev", f"{node},node-name=disk", "--export", export)


# Past the page cache, in which a read beside a write of the same block may have a part of each.
RAW = "driver=raw,file.driver=file,file.filename=image,discard=unmap,file.discard=unmap,file.cache.direct=on"
QCOW2 = "driver=qcow2,file.driver=file,file.filename=disk.qcow2,discard=unmap,file.cache.direct=on"

# Verified load: with as many queues as reactors, with one for both, and a thin image behind it.
with open("image", "wb") as image:
    image.truncate(64 << 20)
for queues in 2, 1:
    server = daemon(RAW, queues)
    sizes = VERIFY.replace("-o 4096", "-o 4k/50:512k/50") if queues == 2 else VERIFY
    run_target(STORAGE, f"{sizes} -t 1")
    assert server.poll() is None, "the daemon ended with its first client"
    stop(server)
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk.qcow2", "64M"], check=True)
server = daemon(QCOW2)
run_target(STORAGE, f"{VERIFY} -t 1")
stop(server)
subprocess.run(["qemu-img", "check", "-q", "disk.qcow2"], check=True)
server = daemon("driver=null-co,size=1073741824,read-zeroes=on")
print(run_target(STORAGE, '"$NVLANE" perf "$NVLANE_ADDR" -q 32 -P 2 -o 4096 -w randread -t 1 -a 0'))
stop(server)

# What is written through the target is in the image, and what is deallocated is not.
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk.qcow2", "64M"], check=True)
server = daemon(QCOW2)
check_image(STORAGE, server, "disk.qcow2")

# A daemon that is killed and comes back under verified load: commands wait for it.
server = daemon(RAW)
load = start([*target_command(STORAGE, CORES), "--run", f"{VERIFY} -t 4"], stdout=subprocess.DEVNULL)
for _ in range(3):
    time.sleep(0.7)
    stop(server, signal.SIGKILL)
    server = daemon(RAW)
assert load.wait(60) == 0, "the load found an error"

# Flushes: what they covered is there; what none covered when the daemon died is reported, once.
chain = Chain(STORAGE)
client = chain.client()
data = os.urandom(BLOCK)
client.pwrite(data, 0)
assert flush(client)
stop(server, signal.SIGKILL)
server = daemon(RAW)
assert client.pread(BLOCK, 0) == data
assert flush(client), "nothing was left to flush when the daemon died"
client.pwrite(data, BLOCK)
stop(server, signal.SIGKILL)
server = daemon(RAW)
client.pread(BLOCK, 0)
assert not flush(client) and flush(client), "the loss is told once"
client.shutdown()
chain.stop()
stop(server)

# Read-only there, read-only here.
server = daemon(RAW, writable=False)
run_target(STORAGE, '! "$NVLANE" perf "$NVLANE_ADDR" -w write -d 1 && "$NVLANE" perf "$NVLANE_ADDR" -w read -d 100')
stop(server)

# Our own bridge, before another target, whose namespace grows.
os.unlink(DISK) if os.path.exists(DISK) else None
run = f'exec "$NVLANE" --log error attach vhost-user "$NVLANE_ADDR" --socket {DISK} --queues 2'
command = [*target_command("ram:64M", "0"), "--control", CONTROL, "--run", run]
below = start(command, stdout=subprocess.DEVNULL)
until = time.monotonic() + 20
while not os.path.exists(DISK):
    assert time.monotonic() < until and below.poll() is None, "the bridge does not start"
    time.sleep(0.01)
run_target(STORAGE, f"{VERIFY} -t 1")
grow = f"""
    "$NVLANE" identify "$NVLANE_ADDR" -o json | grep -q '"nsze": *16384' || exit 1
    "$NVLANE" ctl --control {CONTROL} namespace set 1 --size 128M || exit 1
    for _ in $(seq 300); do
        "$NVLANE" identify "$NVLANE_ADDR" -o json | grep -q '"nsze": *32768' && exit 0
        sleep 0.1
    done
    exit 1"""
run_target(STORAGE, grow)
stop(below)

# A daemon that is not there: said at once.
os.unlink(DISK) if os.path.exists(DISK) else None
refused = subprocess.run([*target_command(STORAGE, "0"), "--run", "true"], capture_output=True, text=True)
assert refused.returncode != 0 and "cannot connect" in refused.stderr, refused
print("all as expected")
