"""A target before storage in another process, and programs before the target."""

import atexit
import errno
import os
import signal
import subprocess
import sys
import time

import nbd

NVLANE = os.environ["NVLANE"]
BLOCK = 4096
# Two reactors, where there are two cores.
CORES = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
BRIDGE = os.path.abspath("bridge.sock")
VERIFY = '"$NVLANE" perf "$NVLANE_ADDR" -q 16 -P 4 -o 4096 -w randrw -M 50 --verify -a 0'

children = []


def start(command, **options):
    """Starts a process that does not outlive this one."""
    children.append(subprocess.Popen(command, **options))
    return children[-1]


def stop(process, how=signal.SIGTERM):
    process.send_signal(how)
    process.wait(20)


atexit.register(lambda: [child.kill() for child in children])


def serve(path, *command):
    """A server at this socket."""
    if os.path.exists(path):
        os.unlink(path)
    process = start(command)
    until = time.monotonic() + 10
    while not os.path.exists(path):
        assert time.monotonic() < until and process.poll() is None, f"{command[0]} does not start"
        time.sleep(0.01)
    return process


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

    def __init__(self, storage):
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


def check_image(storage, server, image):
    """Writes and deallocates through a target, ends the server, and finds in the qcow2 image what was written and nothing else."""
    chain = Chain(storage)
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
    subprocess.run(["qemu-img", "check", "-q", image], check=True)
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, "raw"], check=True)
    with open("raw", "rb") as raw:
        raw.seek(4 << 20)
        assert raw.read(1 << 20) == data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :]
    allocated = os.stat("raw").st_blocks * 512
    assert allocated <= 1 << 20, f"{allocated} bytes are allocated: what was deallocated is still there"
