"""A target is killed and comes back under load through `nvlane attach nbd`: what was acknowledged and flushed is there, the first
flush of every connection afterwards fails, nothing hangs beyond the stated time; sockets and signals of the bridge.

Outside: NVLANE, the program; an empty working directory."""

import atexit
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time

import nbd

NVLANE = os.environ["NVLANE"]
NQN = "nqn.2026-01.io.nvlane:restarted"
SIZE = 64 << 20
BLOCK = 4096
PATH = os.path.abspath("nbd.sock")
URI = f"nbd+unix:///?socket={PATH}"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


PORT = free_port()
ADDRESS = f"127.0.0.1:{PORT}/{NQN}"


children = []


def start(command, **options):
    """Starts a process that does not outlive this one."""
    children.append(subprocess.Popen(command, **options))
    return children[-1]


atexit.register(lambda: [child.kill() for child in children])


class Target:
    def __init__(self):
        self.start()

    def start(self):
        command = [NVLANE, "--log", "warn", "target", "--listen", f"127.0.0.1:{PORT}", "--nqn", NQN]
        self.process = start([*command, "--namespace", "file:image?size=64M"])
        until = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", PORT)).close()
            except ConnectionRefusedError:
                assert time.monotonic() < until and self.process.poll() is None, "the target does not start"
                time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()


def bridge(*options):
    command = [NVLANE, "attach", "nbd", ADDRESS, "--socket", PATH, *options]
    process = start(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == f"nbd+unix:///?socket={PATH}", "no URI is printed"
    return process


def connect():
    handle = nbd.NBD()
    handle.connect_uri(URI)
    return handle


def flush(handle):
    """Whether a flush succeeds."""
    try:
        handle.flush()
        return True
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error
        return False


target = Target()
server = bridge("--fast-io-fail", "20")
assert os.stat(PATH).st_mode & 0o777 == 0o600

# Acknowledged and flushed writes over two losses. A client that is told of a loss writes again what it had not flushed.
writer, idle = connect(), connect()
assert flush(idle)
choices = random.Random(5)
durable, pending = {}, {}
refused = 0
for number in range(600):
    block = choices.randrange(2048)
    pending[block] = number
    writer.pwrite(number.to_bytes(8, "big") * (BLOCK // 8), block * BLOCK)
    if number % 20 == 19:
        while not flush(writer):
            refused += 1
            for again, value in pending.items():
                writer.pwrite(value.to_bytes(8, "big") * (BLOCK // 8), again * BLOCK)
        durable.update(pending)
        pending.clear()
    if number in (210, 410):
        # In the middle of unflushed writes.
        target.kill()
        target.start()
assert refused == 2, f"{refused} flushes failed; each of two losses is told once"
late = connect()
assert not flush(late), "a connection that may be the client's inherits the loss that another one has not been told"
assert not flush(idle) and flush(idle), "every connection is told once"
assert flush(late)
for block, value in durable.items():
    assert late.pread(BLOCK, block * BLOCK) == value.to_bytes(8, "big") * (BLOCK // 8), block
for handle in (writer, idle, late):
    handle.shutdown()
target.kill()
target.start()
later = connect()
assert flush(later), "nothing was left to flush when the target was lost"
later.shutdown()

# fio verifies what it wrote before and after the loss, and sees no error.
command = ["fio", "--name=verify", "--ioengine=nbd", f"--uri={URI}", "--numjobs=2", "--size=16M", "--offset_increment=16M"]
command += ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--rate_iops=2500", "--verify=crc32c", "--do_verify=1"]
fio = start([*command, "--output=fio.log"])
time.sleep(1)
target.kill()
time.sleep(0.5)
target.start()
if fio.wait(30) != 0:
    print(open("fio.log").read())
    sys.exit("fio found an error")

# A second bridge does not take the socket of a live one, and takes that of a dead one.
second = subprocess.run([NVLANE, "attach", "nbd", ADDRESS, "--socket", PATH], capture_output=True, text=True)
assert second.returncode == 2 and "another bridge" in second.stderr, second
server.kill()
server.wait()
assert os.path.exists(PATH)
server = bridge("--fast-io-fail", "1", "--ctrl-loss-timeout", "60", "--read-only", "--connections", "2")

# Read-only; as many connections as are allowed.
reader, other = connect(), connect()
assert reader.is_read_only() and not reader.can_trim()
reader.set_strict_mode(0)
try:
    reader.pwrite(bytes(BLOCK), 0)
    sys.exit("a write was accepted")
except nbd.Error as error:
    assert error.errnum == errno.EPERM, error
try:
    connect()
    sys.exit("a third connection was accepted")
except nbd.Error:
    pass
other.shutdown()

# Without the target requests fail in time, and the bridge ends at once.
target.kill()
begin = time.monotonic()
try:
    reader.pread(BLOCK, 0)
    sys.exit("a read succeeded without a target")
except nbd.Error as error:
    assert error.errnum == errno.EIO, error
took = time.monotonic() - begin
assert 0.5 < took < 5, f"a read failed after {took} s"
target.start()
until = time.monotonic() + 10
while True:
    try:
        reader.pread(BLOCK, 0)
        break
    except nbd.Error as error:
        assert error.errnum == errno.EIO and time.monotonic() < until, error
target.kill()
begin = time.monotonic()
server.send_signal(signal.SIGTERM)
assert server.wait(20) == 0
took = time.monotonic() - begin
assert took < 10, f"the bridge ended after {took} s"
assert not os.path.exists(PATH), "the socket is still there"
print("all as expected")
