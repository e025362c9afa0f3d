"""Bridges without their network, with another target behind their address, and without memory: what was acknowledged is there, no
request takes longer than stated, errors are errors, each bridge can be detached, and no process stays in uninterruptible sleep.

Outside: NVLANE, the program; an empty working directory. As root, with `ip`: it makes a network namespace for the target."""

import atexit
import errno
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import nbd

NVLANE = os.environ["NVLANE"]
NQN = "nqn.2026-01.io.nvlane:faults"
BLOCK = 4096
MIB = 1 << 20
# A silent network is noticed within the keep-alive timeout of 10 s, and its loss is a connection's.
NOTICED_S = 15
# What a busy machine may add.
SLACK_S = 15
ID = os.getpid()
NAMESPACE, NEAR, FAR = f"nvlane-faults-{ID}", f"nvf{ID}n", f"nvf{ID}f"
HOST, TARGET = (f"198.18.{ID % 200}.{end}" for end in (1, 2))

children = []


def start(command, **options):
    """Starts a process that does not outlive this one."""
    children.append(subprocess.Popen(command, **options))
    return children[-1]


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def run(*command):
    subprocess.run(command, check=True)


def clean():
    for mounted in ("ext4", "files"):
        subprocess.run(["umount", "--lazy", mounted], stderr=subprocess.DEVNULL)
    # With what they have started.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    for child in children:
        child.kill()
        child.wait()
    for name in (["link", "delete", NEAR], ["netns", "delete", NAMESPACE]):
        subprocess.run(["ip", *name], stderr=subprocess.DEVNULL)
    for group in glob.glob(f"/sys/fs/cgroup/nvlane-faults-{ID}") + glob.glob(f"/sys/fs/cgroup/memory/nvlane-faults-{ID}"):
        os.rmdir(group)


def say(text):
    print(f"{time.monotonic() - BEGIN:6.1f} s  {text}", flush=True)


class Network:
    """A pair of devices, the far one in a namespace of its own. Without it packets are dropped silently."""

    def __init__(self):
        if subprocess.run(["ip", "netns", "add", NAMESPACE]).returncode != 0:
            print("skipped: no network namespace can be made here")
            sys.exit(0)
        run("ip", "link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", NAMESPACE)
        run("ip", "address", "add", f"{HOST}/30", "dev", NEAR)
        run("ip", "-n", NAMESPACE, "address", "add", f"{TARGET}/30", "dev", FAR)
        run("ip", "link", "set", NEAR, "up")
        self.up()

    def up(self):
        run("ip", "-n", NAMESPACE, "link", "set", FAR, "up")

    def down(self):
        run("ip", "-n", NAMESPACE, "link", "set", FAR, "down")


class Target:
    def __init__(self, *storage):
        command = ["ip", "netns", "exec", NAMESPACE, NVLANE, "--log", "warn", "target", "--listen", f"{TARGET}:4420", "--nqn", NQN]
        for spec in storage:
            command += ["--namespace", spec]
        self.process = start(command)
        until = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection((TARGET, 4420), 1).close()
            except OSError:
                assert time.monotonic() < until and self.process.poll() is None, "the target does not start"
                time.sleep(0.05)

    def stop(self):
        stop(self.process)


class Bridge:
    def __init__(self, kind, namespace, *options, before=()):
        address = f"{TARGET}:4420/{NQN}?ns={namespace}"
        command = [*before, NVLANE, "--log", "warn", "attach", kind, address, *options]
        self.process = start(command, stdout=subprocess.PIPE, text=True)
        self.device = self.process.stdout.readline().strip()
        assert self.device, f"attach {kind} ended: {self.process.poll()}"

    def end(self, limit, what):
        """Ends it by SIGTERM, within a time."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(limit + SLACK_S) == 0, what
        say(f"{what}: ended after {time.monotonic() - begin:.1f} s")


class Sleepers(threading.Thread):
    """Looks for threads of our processes, and of loop devices, in uninterruptible sleep: the longest time of each."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest = {}
        self.start()

    def run(self):
        since = {}
        while True:
            now, found = time.monotonic(), set()
            for path in glob.glob("/proc/[0-9]*/task/[0-9]*/stat"):
                try:
                    head, _, tail = open(path).read().rpartition(")")
                except OSError:
                    continue
                name, state, parent, group = head.partition("(")[2], *tail.split()[:3]
                if state == "D" and (int(group) == os.getpgrp() or name.startswith("loop")):
                    found.add(path)
                    since.setdefault(path, now)
                    self.longest[name] = max(self.longest.get(name, 0), now - since[path])
            since = {path: begin for path, begin in since.items() if path in found}
            time.sleep(0.2)

    def check(self, limit):
        say(f"uninterruptible sleep, s: {({name: round(time_s, 1) for name, time_s in self.longest.items()})}")
        for name, time_s in self.longest.items():
            assert time_s < limit, f"{name} was in uninterruptible sleep for {time_s:.0f} s"
        self.longest.clear()


def fio(name, *options):
    command = ["fio", f"--name={name}", "--rw=randwrite", "--bs=4k", "--size=32M", "--iodepth=8", "--verify=crc32c"]
    command += ["--rate_iops=1500", "--output-format=json", f"--output={name}.json", *options]
    return start(command)


def latency_max(name):
    """The longest request of a run without an error, seconds."""
    text = open(f"{name}.json").read()
    job = json.loads(text[text.index("{") :])["jobs"][0]
    assert job["error"] == 0, text
    return max(job[way]["clat_ns"]["max"] for way in ("read", "write")) / 1e9


def fails(call, *arguments):
    """Seconds after which a call fails with EIO."""
    begin = time.monotonic()
    try:
        call(*arguments)
    except (nbd.Error, OSError) as error:
        number = error.errnum if isinstance(error, nbd.Error) else error.errno
        assert number == errno.EIO, error
        return time.monotonic() - begin
    raise AssertionError("a request succeeded without a target")


def connect(path):
    handle = nbd.NBD()
    handle.connect_uri(f"nbd+unix:///?socket={path}")
    return handle


def eventually(call, limit, what):
    """Calls until it does not fail."""
    until = time.monotonic() + limit
    while True:
        try:
            return call()
        except (nbd.Error, OSError) as error:
            assert time.monotonic() < until, f"{what}: {error}"
            time.sleep(0.2)


def gone_and_back(seconds):
    """The network is gone under verified load on three bridges: nothing fails, and nothing is lost."""
    target = Target(*(f"file:image{number}?size=64M" for number in (1, 2, 3)))
    server = Bridge("nbd", 1, "--socket", os.path.abspath("nbd.sock"))
    files = Bridge("fuse", 2, "files")
    device = Bridge("vhost-user", 3, "--socket", os.path.abspath("disk.sock"), "--queues", "2")
    loads = {
        "nbd": fio("nbd", "--ioengine=nbd", f"--uri={server.device}"),
        "fuse": fio("fuse", "--ioengine=libaio", "--direct=1", f"--filename={files.device}"),
    }
    # In the place of a guest: a target whose storage is the device, which reports a path error while it waits for it.
    guest = [NVLANE, "--log", "error", "target", "--listen", "127.0.0.1:0", "--namespace", f"vhost-user:{device.device}"]
    attach = f'exec "$NVLANE" --log warn attach nbd "$NVLANE_ADDR" --socket {os.path.abspath("guest.sock")}'
    guest = start([*guest, "--run", attach], stdout=subprocess.PIPE, text=True)
    loads["vhost-user"] = fio("vhost-user", "--ioengine=nbd", f"--uri={guest.stdout.readline().strip()}")
    time.sleep(2)
    network.down()
    say(f"network gone for {seconds} s")
    time.sleep(seconds)
    for name, load in loads.items():
        assert load.poll() is None, f"{name} has ended without a network: {load.returncode}"
    network.up()
    begin = time.monotonic()
    for name, load in loads.items():
        if load.wait(120) != 0:
            print(open(f"{name}.json").read())
            sys.exit(f"{name}: the load found an error")
    longest = {name: round(latency_max(name), 1) for name in loads}
    say(f"loads ended after {time.monotonic() - begin:.1f} s, without an error; longest request, s: {longest}")
    for name, time_s in longest.items():
        assert seconds - NOTICED_S < time_s < seconds + NOTICED_S + SLACK_S, f"{name}: {time_s} s"
    stop(guest)
    server.end(5, "nbd")
    files.end(5, "fuse")
    device.end(5, "vhost-user")
    target.stop()


def detach():
    """Without a network requests fail in time, and every way to detach works."""
    target = Target(*(f"file:image{number}?size=64M" for number in (1, 2)))
    options = ("--fast-io-fail", "5")
    path = os.path.abspath("nbd.sock")
    server = Bridge("nbd", 1, "--socket", path, *options)
    files = Bridge("fuse", 2, "files", *options)
    client, idle = connect(path), connect(path)
    client.pwrite(b"a" * BLOCK, 0)
    client.flush()
    file = os.open(files.device, os.O_RDWR)
    os.pwrite(file, b"a" * BLOCK, 0)
    os.fsync(file)
    network.down()
    say("network gone, --fast-io-fail 5")
    took = {}

    def measure(name, *call):
        took[name] = fails(*call)

    calls = {
        "nbd write": (client.pwrite, b"b" * BLOCK, 0),
        "file write": (os.pwrite, file, b"b" * BLOCK, 0),
        "file read": (os.pread, file, BLOCK, 8 * MIB),
        "file fsync": (os.fsync, os.open(files.device, os.O_RDWR)),
    }
    threads = [threading.Thread(target=measure, args=(name, *call)) for name, call in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(f"failed with EIO after, s: {({name: round(time_s, 1) for name, time_s in took.items()})}")
    assert took.keys() == calls.keys(), took
    for name, time_s in took.items():
        assert 3 < time_s < 5 + NOTICED_S + SLACK_S, f"{name}: {time_s} s"
    # Once it is back, so are its data: what failed may have been written, and nothing else.
    network.up()
    found = eventually(lambda: client.pread(BLOCK, 0), 40, "a read after the network is back")
    assert found in (b"a" * BLOCK, b"b" * BLOCK)
    eventually(lambda: client.flush(), 10, "a flush")
    eventually(lambda: os.fsync(file), 10, "an fsync")
    os.close(file)

    # Detached while requests wait.
    network.down()
    waiting = start(["dd", f"of={files.device}", "if=/dev/zero", "bs=4k", "count=1", "conv=notrunc,fsync"], stderr=subprocess.DEVNULL)
    request = client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(BLOCK)), BLOCK)
    client.poll(0)
    time.sleep(1)
    server.end(30, "nbd without a network, with a request")
    files.end(30, "fuse without a network, with a request")
    assert waiting.wait(SLACK_S) != 0, "dd wrote to a file that is not there"
    assert not os.path.ismount("files")
    network.up()

    # And by others than the bridge.
    for command in (["fusermount3", "-u", "files"], ["umount", "files"]):
        if shutil.which(command[0]) is None:
            say(f"not tried: {command[0]} is not installed")
            continue
        files = Bridge("fuse", 2, "files")
        network.down()
        time.sleep(0.5)
        begin = time.monotonic()
        run(*command)
        assert files.process.wait(30 + SLACK_S) == 0
        say(f"{command[0]} without a network: bridge ended after {time.monotonic() - begin:.1f} s")
        network.up()
    target.stop()


def other_identity():
    """Another target answers at the address: it is never written to."""
    target = Target("file:image1?size=64M")
    path = os.path.abspath("nbd.sock")
    server = Bridge("nbd", 1, "--socket", path, "--fast-io-fail", "10")
    client = connect(path)
    client.pwrite(b"a" * BLOCK, 0)
    client.flush()
    for name, size in ("other", 64), ("smaller", 32):
        target.stop()
        with open(name, "wb") as image:
            image.write(random.Random(name).randbytes(size * MIB))
        target = Target(f"file:{name}")
        took = [fails(client.pwrite, b"c" * BLOCK, 0), fails(client.pread, BLOCK, 0), fails(client.zero, MIB, 0)]
        say(f"{name} target refused after, s: {[round(time_s, 1) for time_s in took]}")
        # A new connection is none to the other one, either.
        try:
            fails(connect(path).pwrite, b"c" * BLOCK, 0)
        except nbd.Error as error:
            say(f"a new connection is refused: {error}")
        target.stop()
        with open(name, "rb") as image:
            assert image.read() == random.Random(name).randbytes(size * MIB), f"{name} was written to"
        target = Target("file:image1?size=64M")
        assert eventually(lambda: client.pread(BLOCK, 0), 20, "the known target is back") == b"a" * BLOCK
    server.end(5, "nbd")
    target.stop()


class MemoryLimit:
    """A control group of either version, in which programs have this much memory."""

    def __init__(self, limit):
        unified = "/sys/fs/cgroup"
        if "memory" in open(f"{unified}/cgroup.controllers").read() if os.path.exists(f"{unified}/cgroup.controllers") else False:
            self.path, limit_file = f"{unified}/nvlane-faults-{ID}", "memory.max"
            open(f"{unified}/cgroup.subtree_control", "w").write("+memory")
        else:
            self.path, limit_file = f"{unified}/memory/nvlane-faults-{ID}", "memory.limit_in_bytes"
        os.mkdir(self.path)
        open(f"{self.path}/{limit_file}", "w").write(str(limit))
        self.before = ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]


def memory():
    """Dirty pages of a file system on a bridged file fill the control group that the bridge is in: they are written, and end."""
    target = Target("ram:1G")
    limit = MemoryLimit(96 * MIB)
    files = Bridge("fuse", 1, "files", before=limit.before)
    run("mkfs.ext4", "-q", "-F", "-b", "4096", files.device)
    attached = subprocess.run(
        ["losetup", "--find", "--show", "--sector-size", "4096", files.device], capture_output=True, text=True
    )
    if attached.returncode != 0:
        say(f"skipped: no loop device here: {attached.stderr}")
        return
    device = attached.stdout.strip()
    atexit.register(lambda: subprocess.run(["losetup", "--detach", device], stderr=subprocess.DEVNULL))
    run("mount", device, "ext4")
    begin = time.monotonic()
    writers = [
        start([*limit.before, "dd", "if=/dev/urandom", f"of=ext4/data{number}", "bs=1M", "count=200"], stderr=subprocess.DEVNULL)
        for number in range(2)
    ]
    # Another writer of dirty pages, on the file itself.
    for writer in writers:
        assert writer.wait(120) == 0, "a writer failed"
    took = time.monotonic() - begin
    run(*limit.before, "sync", "--file-system", "ext4")
    say(f"400 MiB by programs and a bridge that have 96 MiB: {took:.1f} s, and {time.monotonic() - begin - took:.1f} s to sync")
    before = [subprocess.run(["sha256sum", f"ext4/data{number}"], capture_output=True, check=True).stdout for number in range(2)]
    run("umount", "ext4")
    run("mount", device, "ext4")
    after = [subprocess.run(["sha256sum", f"ext4/data{number}"], capture_output=True, check=True).stdout for number in range(2)]
    assert before == after, "other bytes are on the device than were written"
    run("umount", "ext4")
    run("losetup", "--detach", device)
    assert files.process.poll() is None, "the bridge has ended"
    files.end(5, "fuse")
    target.stop()


BEGIN = time.monotonic()
if os.geteuid() != 0:
    print("skipped: not root")
    sys.exit(0)
os.setpgrp()
atexit.register(clean)
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
for directory in "files", "ext4":
    os.makedirs(directory, exist_ok=True)
network = Network()
sleepers = Sleepers()
CASES = {"gone-and-back": lambda: gone_and_back(30), "detach": detach, "other-identity": other_identity, "memory": memory}
for name in sys.argv[1:] or CASES:
    say(name)
    CASES[name]()
    sleepers.check(60 + NOTICED_S + SLACK_S)
print("all as expected")
