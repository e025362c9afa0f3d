"""Measures a cache of large values: bandwidth beside plain sockets, tests for keys, and Python's own speed meanwhile.

    nvlane target --listen 127.0.0.1:0 --namespace kv:ram:1G --run 'python3 cache_speed.py $NVLANE_ADDR --full'

Without --full it takes a few seconds and smaller values. Two cores or more: one is the target's.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import nvlane

MIB = 1 << 20

# How often each rate is measured.
ROUNDS = 5

# The far end of the plain sockets: sends, then receives, as many bytes as it is told.
FAR_END = """
import socket, sys
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
block = memoryview(bytearray(1 << 20))
while command := near.recv(9, socket.MSG_WAITALL):
    for _ in range(int.from_bytes(command[1:], "little")):
        if command[:1] == b"g":
            near.sendall(block)
        else:
            near.recv_into(block, 1 << 20, socket.MSG_WAITALL)
    if command[:1] == b"s":
        near.sendall(b"!")
"""


def rate(seconds: float, count: int, call: Callable[[], object]) -> float:
    """How many times `count` there is in a second of these calls."""
    call()
    end, calls, start = time.perf_counter() + seconds, 0, time.perf_counter()
    while time.perf_counter() < end or not calls:
        call()
        calls += 1
    return count * calls / (time.perf_counter() - start)


def ceilings(seconds: float, length: int) -> tuple[float, float]:
    """MiB per second that plain sockets carry from and to another process, into and out of memory of this length."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = subprocess.Popen([sys.executable, "-c", FAR_END, str(server.getsockname()[1])])
        near, _ = server.accept()
    block = memoryview(bytearray(length))
    count = length // MIB

    def get() -> None:
        near.sendall(b"g" + count.to_bytes(8, "little"))
        for at in range(0, length, MIB):
            near.recv_into(block[at : at + MIB], MIB, socket.MSG_WAITALL)

    def put() -> None:
        near.sendall(b"s" + count.to_bytes(8, "little"))
        near.sendall(block)
        near.recv(1)

    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    measured = rate(seconds, count, get), rate(seconds, count, put)
    near.close()
    far.wait()
    return measured


def waited_s() -> float:
    """Seconds for which this thread was ready and had no core."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as schedstat:
        return int(schedstat.read().split()[1]) / 1e9


def counted(seconds: float) -> tuple[float, float]:
    """What a thread of plain Python counts in a second, and in a second with a core."""
    waited, start, count = waited_s(), time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        count += 1
    took = time.perf_counter() - start
    return count / took, count / (took - (waited_s() - waited))


def beside_gets(cache: nvlane.KeyValue, seconds: float, length: int) -> tuple[float, float]:
    """The share of its speed that counting keeps while eight values are on the way: of all time, and of that with a core."""
    keys = [f"beside-{number}" for number in range(8)]
    assert all(cache.set_many(keys, [bytes(length)] * 8))
    ends = threading.Event()
    buffers = [bytearray(length) for _ in keys]

    def get() -> None:
        while not ends.is_set():
            assert cache.get_many_into(keys, buffers) == [True] * 8

    alone = counted(seconds)
    getter = threading.Thread(target=get)
    getter.start()
    beside = counted(seconds)
    ends.set()
    getter.join()
    cache.delete_many(keys)
    return beside[0] / alone[0], beside[1] / alone[1]


class Rates(NamedTuple):
    """MiB per second of gets and sets, and how much memory grew meanwhile, MiB."""

    get: float
    set: float
    grown_mib: float


def memory_mib(which: str) -> float:
    """Resident memory of this process: now (VmRSS), or the most since its peak was reset (VmHWM), MiB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{which}:")) / 1024


def rates(cache: nvlane.KeyValue, seconds: float, mib: int, count: int) -> Rates:
    """Gets and sets of values of this many MiB, `count` of them in a call."""
    keys = [f"cache-speed@{mib}@{number:064x}" for number in range(count)]
    values = [bytearray(mib * MIB) for _ in keys]
    for number, value in enumerate(values):
        value[::4096] = bytes((number + page) % 251 for page in range(mib * 256))
    wanted = [bytes(value[:4096]) for value in values]
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = memory_mib("VmRSS")
    set_rate = rate(seconds, count * mib, lambda: cache.set_many(keys, values))
    for value in values:
        value[:4096] = bytes(4096)
    get_rate = rate(seconds, count * mib, lambda: cache.get_many_into(keys, values))
    grown_mib = memory_mib("VmHWM") - before
    assert [bytes(value[:4096]) for value in values] == wanted
    cache.delete_many(keys)
    return Rates(get_rate, set_rate, grown_mib)


def report(cache: nvlane.KeyValue, seconds: float, sizes: list[int], in_a_call_mib: int) -> None:
    """Prints the rates of values of these sizes in MiB: one value in a call, or as many as have `in_a_call_mib`.

    Medians of rounds in each of which all are measured: a machine is not equally fast at all times.
    """
    counts = [max(in_a_call_mib // mib, 1) for mib in sizes]
    rounds = [
        (
            ceilings(seconds, max(sizes) * MIB),
            [rates(cache, seconds, mib, count) for mib, count in zip(sizes, counts, strict=True)],
        )
        for _ in range(ROUNDS)
    ]
    most_get, most_set = (statistics.median(column) for column in zip(*(most for most, _ in rounds), strict=True))
    print(f"plain sockets     get {most_get:6.0f} MiB/s         set {most_set:6.0f} MiB/s")
    gets, sets = [], []
    for at, (mib, count) in enumerate(zip(sizes, counts, strict=True)):
        of_size = [own[at] for _, own in rounds]
        gets.append(statistics.median(own.get for own in of_size))
        sets.append(statistics.median(own.set for own in of_size))
        print(
            f"{count:2} of {mib:2} MiB       get {gets[-1]:6.0f} MiB/s ({gets[-1] / most_get:.2f})"
            f"  set {sets[-1]:6.0f} MiB/s ({sets[-1] / most_set:.2f})"
            f"  memory beside values {max(own.grown_mib for own in of_size):.0f} MiB"
        )
    print(f"least over most   get {min(gets) / max(gets):6.2f}               set {min(sets) / max(sets):6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="a key-value namespace: HOST[:PORT]/NQN[?ns=NSID]")
    parser.add_argument("--full", action="store_true", help="values of up to 80 MiB, 2 seconds each")
    parser.add_argument("--lanes", type=int, default=1, help="connections (default 1)")
    options = parser.parse_args()
    seconds, sizes = (2.0, [1, 4, 10, 32, 80]) if options.full else (0.05, [1, 4])
    # Of each round.
    of_round = seconds / ROUNDS
    with nvlane.KeyValue(options.address, lanes=options.lanes) as cache:
        report(cache, of_round, sizes, 1)
        report(cache, of_round, sizes, max(sizes))
        keys = [f"model@00000001@0@{number:064x}" for number in range(1024)]
        per_second = rate(seconds, 1024, lambda: cache.exists_many(keys))
        probes = []
        for _ in range(200 if options.full else 20):
            start = time.perf_counter()
            cache.exists_many(keys)
            probes.append(time.perf_counter() - start)
        print(f"exists          {per_second:.0f} keys/s, p50 of 1,024 keys {statistics.median(probes) * 1e6:.0f} us")
        share, with_core = beside_gets(cache, max(seconds, 0.2), max(sizes) * MIB if options.full else MIB)
        print(f"counting beside eight gets keeps {share:.2f} of its speed, {with_core:.2f} while it has a core")


if __name__ == "__main__":
    main()
