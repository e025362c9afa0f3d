"""Measures a cache of large values: bandwidth beside plain sockets, tests for keys, and Python's own speed meanwhile.

    nvlane target --listen 127.0.0.1:0 --namespace kv:ram:1G --run 'python3 cache_speed.py $NVLANE_ADDR --full'

Without --full it takes a few seconds and smaller values. Two cores or more: one is the target's.
"""

import argparse
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import nvlane

MIB = 1 << 20

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


def counted(seconds: float) -> int:
    """What a thread of plain Python counts in this time."""
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += 1
    return count


def beside_gets(cache: nvlane.KeyValue, seconds: float, length: int) -> float:
    """The share of its speed that counting keeps while eight values are on the way."""
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
    return beside / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="a key-value namespace: HOST[:PORT]/NQN[?ns=NSID]")
    parser.add_argument("--full", action="store_true", help="values of up to 80 MiB, 2 seconds each")
    parser.add_argument("--lanes", type=int, default=1, help="connections (default 1)")
    options = parser.parse_args()
    seconds, sizes = (2.0, [1, 4, 10, 32, 80]) if options.full else (0.05, [1, 4])
    with nvlane.KeyValue(options.address, lanes=options.lanes) as cache:
        most_get, most_set = ceilings(seconds, max(sizes) * MIB)
        print(f"plain sockets   get {most_get:6.0f} MiB/s  set {most_set:6.0f} MiB/s")
        gets, sets = [], []
        for mib in sizes:
            key, value = f"cache-speed@{mib}@" + "0" * 64, bytearray(mib * MIB)
            value[:: 4096] = bytes(page % 251 for page in range(mib * 256))
            sets.append(rate(seconds, mib, lambda: cache.set_many([key], [value])))
            wanted = bytes(value[:MIB])
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            gets.append(rate(seconds, mib, lambda: cache.get_many_into([key], [value])))
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            assert value[:MIB] == wanted
            cache.delete_many([key])
            print(
                f"{mib:3} MiB         get {gets[-1]:6.0f} MiB/s ({gets[-1] / most_get:.2f})"
                f"  set {sets[-1]:6.0f} MiB/s ({sets[-1] / most_set:.2f})  memory beside values {grown:.0f} MiB"
            )
        print(f"least over most get {min(gets) / max(gets):6.2f}        set {min(sets) / max(sets):6.2f}")
        keys = [f"model@00000001@0@{number:064x}" for number in range(1024)]
        per_second = rate(seconds, 1024, lambda: cache.exists_many(keys))
        probes = []
        for _ in range(200 if options.full else 20):
            start = time.perf_counter()
            cache.exists_many(keys)
            probes.append(time.perf_counter() - start)
        print(f"exists          {per_second:.0f} keys/s, p50 of 1,024 keys {statistics.median(probes) * 1e6:.0f} us")
        share = beside_gets(cache, max(seconds, 0.2), max(sizes) * MIB if options.full else MIB)
        print(f"counting beside eight gets keeps {share:.2f} of its speed")


if __name__ == "__main__":
    main()
