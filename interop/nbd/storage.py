"""NBD servers that others wrote as storage of a target: nbdkit (memory, file, filters for errors and delays) and qemu-nbd with a
qcow2 image. Verified load over nvlane's host, and over a server that is killed and comes back; what flushes promise then.

Outside: NVLANE, the program; an empty working directory. With LONG, programs of libnbd, qemu and fio run over the whole chain
(tools.sh), and the server is killed more often."""

import errno
import os
import signal
import subprocess
import time

import nbd
from chain import BLOCK, BRIDGE, CORES, VERIFY, Chain, check_image, flush, run_target, serve, start, stop, target_command

LONG = bool(os.environ.get("LONG"))
HERE = os.path.dirname(os.path.realpath(__file__))
SERVER = os.path.abspath("server.sock")
STORAGE = f"nbd+unix:///?socket={SERVER}"


def nbdkit(*plugin):
    return serve(SERVER, "nbdkit", "--foreground", "--exit-with-parent", f"--unix={SERVER}", *plugin)


def qemu_nbd(image, *options):
    command = ["qemu-nbd", "--persistent", f"--socket={SERVER}", "--format=qcow2", "--discard=unmap", *options, image]
    return serve(SERVER, *command)


def read_error(handle):
    """The error of a read, and the time it took."""
    begin = time.monotonic()
    try:
        handle.pread(BLOCK, 0)
        return None, 0
    except nbd.Error as error:
        return error.errnum, time.monotonic() - begin


# Verified load: a server that takes any number of connections, one that takes one, and a thin image behind it.
server = nbdkit("memory", "64M")
run_target(STORAGE, f"{VERIFY} -t 1")
stop(server)
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk.qcow2", "64M"], check=True)
server = qemu_nbd("disk.qcow2")
run_target(STORAGE, f"{VERIFY} -t 1")
assert server.poll() is None, "qemu-nbd ended with its first client"

stop(server)
subprocess.run(["qemu-img", "check", "-q", "disk.qcow2"], check=True)

# What is written through the target is in the image, and what is deallocated is not. (qemu-nbd needs up to 30 ms for each cluster
# that it deallocates on a busy disk, so there are few.)
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk.qcow2", "64M"], check=True)
server = qemu_nbd("disk.qcow2")
check_image(STORAGE, server, "disk.qcow2")

# The holes of the server are those of the namespace.
server = nbdkit("data", "data=@1048576 2*100000 @33554432 3", "size=64M")
chain = Chain(STORAGE)


def holes(socket):
    return subprocess.run(["nbdinfo", "--map", f"nbd+unix:///?socket={socket}"], capture_output=True, text=True, check=True).stdout


before = holes(SERVER)
assert before.count("data") == 2 and holes(BRIDGE) == before, (before, holes(BRIDGE))
writer = chain.client()
writer.pwrite(os.urandom(1 << 20), 40 << 20)
assert holes(BRIDGE) == holes(SERVER) != before
writer.zero(1 << 20, 40 << 20)
assert holes(BRIDGE) == holes(SERVER) == before
writer.shutdown()
chain.stop()
stop(server)

# A server that is killed and comes back under verified load: commands wait for it.
with open("image", "wb") as image:
    image.truncate(64 << 20)
server = nbdkit("file", "image")
load = start([*target_command(STORAGE, CORES), "--run", f"{VERIFY} -t {8 if LONG else 2}"], stdout=subprocess.DEVNULL)
for _ in range(6 if LONG else 1):
    time.sleep(0.7)
    stop(server, signal.SIGKILL)
    server = nbdkit("file", "image")
assert load.wait(60) == 0, "the load found an error"

# Flushes: what they covered is there; what none covered when the server died is reported, once.
chain = Chain(STORAGE)
first, second = chain.client(), chain.client()
data = os.urandom(BLOCK)
first.pwrite(data, 0)
assert flush(first)
stop(server, signal.SIGKILL)
server = nbdkit("file", "image")
assert first.pread(BLOCK, 0) == data
assert flush(first), "nothing was left to flush when the server died"
first.pwrite(data, BLOCK)
stop(server, signal.SIGKILL)
server = nbdkit("file", "image")
first.pread(BLOCK, 0)
assert not flush(first) and flush(first), "the loss is told once"
first.shutdown()
second.shutdown()
chain.stop()
stop(server)

# Errors are errors; slow is slow, and with LONG too slow.
server = nbdkit("--filter=error", "memory", "64M", "error-pread=EIO", "error-pread-rate=100%")
chain = Chain(STORAGE)
assert read_error(chain.client())[0] == errno.EIO
chain.stop()
stop(server)
server = nbdkit("--filter=delay", "memory", "64M", "rdelay=20ms", "wdelay=10ms")
run_target(STORAGE, f"{VERIFY} -t 1")
stop(server)
if LONG:
    server = nbdkit("--filter=delay", "memory", "64M", "rdelay=5")
    reads = '"$NVLANE" perf "$NVLANE_ADDR" -q 1 -o 4096 -w randread -t 1 -a 0'
    command = [*target_command(f"{STORAGE}&deadline=1s", CORES), "--run", reads]
    begin = time.monotonic()
    subprocess.run(command, capture_output=True, timeout=60)
    assert time.monotonic() - begin < 30, "commands waited longer than their deadline"
    stop(server)

# A server that is not there, and one that is another: said at once.
os.unlink(SERVER) if os.path.exists(SERVER) else None
refused = subprocess.run([*target_command(STORAGE, "0"), "--run", "true"], capture_output=True, text=True)
assert refused.returncode != 0 and "cannot connect" in refused.stderr, refused

if LONG:
    server = nbdkit("memory", "64M")
    attach = f'"$NVLANE" --log warn attach nbd "$NVLANE_ADDR" --run {HERE}/tools.sh'
    os.environ["BLOCK"] = str(BLOCK)
    print(run_target(STORAGE, attach))
    stop(server)
print("all as expected")
