"""NBD servers that others wrote as storage of a target: nbdkit (memory, file, filters for errors and delays) and qemu-nbd with a
qcow2 image. Verified load over nvlane's host, and over a server that is killed and comes back; what flushes promise then.

Outside: NVLANE, the program; an empty working directory. With LONG, programs of libnbd, qemu and fio run over the whole chain
(tools.sh), and the server is killed more often."""

import atexit
import errno
import os
import signal
import subprocess
import sys
import time

import nbd

NVLANE = os.environ["NVLANE"]
LONG = bool(os.environ.get("LONG"))
HERE = os.path.dirname(os.path.realpath(__file__))
BLOCK = 4096
# Two reactors, where there are two cores.
CORES = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
SERVER = os.path.abspath("server.sock")
BRIDGE = os.path.abspath("bridge.sock")
STORAGE = f"nbd+unix:///?socket={SERVER}"

children = []


def start(command, **options):
    """Starts a process that does not outlive this one."""
    children.append(subprocess.Popen(command, **options))
    return children[-1]


def stop(process, how=signal.SIGTERM):
    process.send_signal(how)
    process.wait(20)


atexit.register(lambda: [child.kill() for child in children])


def serve(*command):
    """An NBD server at its socket."""
    if os.path.exists(SERVER):
        os.unlink(SERVER)
    process = start(command)
    until = time.monotonic() + 10
    while not os.path.exists(SERVER):
        assert time.monotonic() < until and process.poll() is None, f"{command[0]} does not start"
        time.sleep(0.01)
    return process


def nbdkit(*plugin):
    return serve("nbdkit", "--foreground", "--exit-with-parent", f"--unix={SERVER}", *plugin)


def qemu_nbd(image, *options):
    return serve("qemu-nbd", "--persistent", f"--socket={SERVER}", "--format=qcow2", "--discard=unmap", *options, image)


def target_command(storage, reactors):
    return [NVLANE, "--log", "error", "target", "--listen", "127.0.0.1:0", "--cores", reactors, "--namespace", storage]


def run_target(storage, command, reactors=CORES):
    """Runs a shell command while a target serves the storage. Returns its output."""
    whole = [*target_command(storage, reactors), "--run", command]
    ended = subprocess.run(whole, capture_output=True, text=True, timeout=120)
    if ended.returncode != 0:
        sys.exit(f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


class Chain:
    """A target before the server, and an NBD bridge of ours before the target."""

    def __init__(self, storage=STORAGE):
        run = f'exec "$NVLANE" --log error attach nbd "$NVLANE_ADDR" --socket {BRIDGE}'
        self.process = start([*target_command(storage, CORES), "--run", run], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().startswith("nbd+unix:"), "no URI is printed"

    def client(self):
        handle = nbd.NBD()
        handle.connect_uri(f"nbd+unix:///?socket={BRIDGE}")
        return handle

    def stop(self):
        stop(self.process)


def flush(handle):
    """Whether a flush succeeds."""
    try:
        handle.flush()
        return True
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error
        return False


def read_error(handle):
    """The error of a read, and the time it took."""
    begin = time.monotonic()
    try:
        handle.pread(BLOCK, 0)
        return None, 0
    except nbd.Error as error:
        return error.errnum, time.monotonic() - begin


VERIFY = '"$NVLANE" perf "$NVLANE_ADDR" -q 16 -P 4 -o 4096 -w randrw -M 50 --verify -a 0'

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
chain = Chain()
writer = chain.client()
data = os.urandom(1 << 20)
writer.pwrite(data, 0)
writer.trim(64 << 20, 0)
writer.pwrite(data, 4 << 20)
writer.zero(BLOCK, (4 << 20) + BLOCK)
assert flush(writer)
assert writer.pread(3 * BLOCK, 4 << 20) == data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK : 3 * BLOCK]
writer.shutdown()
chain.stop()
stop(server)
subprocess.run(["qemu-img", "check", "-q", "disk.qcow2"], check=True)
subprocess.run(["qemu-img", "convert", "-O", "raw", "disk.qcow2", "raw"], check=True)
with open("raw", "rb") as raw:
    raw.seek(4 << 20)
    assert raw.read(1 << 20) == data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :]
allocated = os.stat("raw").st_blocks * 512
assert allocated <= 1 << 20, f"{allocated} bytes are allocated: what was deallocated is still there"

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
chain = Chain()
first, second = chain.client(), chain.client()
first.pwrite(data[:BLOCK], 0)
assert flush(first)
stop(server, signal.SIGKILL)
server = nbdkit("file", "image")
assert first.pread(BLOCK, 0) == data[:BLOCK]
assert flush(first), "nothing was left to flush when the server died"
first.pwrite(data[:BLOCK], BLOCK)
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
chain = Chain()
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
