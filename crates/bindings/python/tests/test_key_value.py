"""Key-value namespaces from Python."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import nvlane
import numpy
import pytest
from conftest import Target


def test_values_are_stored_and_found(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as cache:
        assert cache.set("key", b"value")
        assert cache.get("key") == cache.get(b"key") == b"value"
        assert cache.get("none") is None
        assert not cache.set("key", b"other", if_absent=True)
        assert not cache.set("none", b"other", if_present=True)
        assert cache.set("empty", b"")
        assert cache.get("empty") == b""
        assert cache.exists("key") and not cache.exists("none")
        buffer = bytearray(8)
        assert cache.get_into("key", buffer) == 5
        assert bytes(buffer) == b"value\0\0\0"
        assert cache.get_into("key", bytearray(2)) == 5
        assert cache.get_into("none", buffer) is None
        cache.delete("key")
        cache.delete("key")
        assert not cache.exists("key")
        cache.flush()


def test_large_values_are_whole(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1), lanes=2) as cache:
        value = numpy.frombuffer(os.urandom(9 << 20), numpy.uint8)
        cache.set("large", value)
        back = numpy.zeros_like(value)
        assert cache.get_into("large", back) == value.nbytes
        assert (back == value).all()
        with pytest.raises(ValueError, match="limit"):
            cache.set("larger", bytearray(cache.value_size_max + 1))


def test_long_values_move_beside_block_namespaces(keys_beside_blocks: Target) -> None:
    """Block namespaces limit a command to 1 MiB: longer values take other commands, from the same calls."""
    short, long = os.urandom(1 << 20), os.urandom((5 << 20) + 3)
    with nvlane.KeyValue(keys_beside_blocks.address(2)) as cache:
        limit = cache.value_size_max
        assert limit == 256 << 20
        assert cache.set("short", short) and cache.set("long", long)
        assert cache.get("short") == short and cache.get("long") == long
        assert not cache.set("long", long[1:], if_absent=True) and not cache.set("none", long, if_present=True)
        buffer = bytearray(6 << 20)
        assert cache.get_into("long", buffer) == len(long)
        assert buffer[: len(long)] == long and not any(buffer[len(long) :])
        assert cache.get_into("short", buffer) == len(short) and buffer[: len(short)] == short
        kept = bytes(buffer)
        for room in (len(long) - 1, 0):
            # Too short: the length, and the buffer as it was.
            too_short = memoryview(buffer)[:room]
            assert cache.get_into("long", too_short) == len(long) and buffer == kept
        assert cache.get("none") is None and cache.get_into("none", buffer) is None and buffer == kept
        assert cache.get_many(["short", "none", "long"]) == [short, None, long]
        with pytest.raises(ValueError, match=f"value of {limit + 1} bytes: this target's limit is {limit}"):
            cache.set("longer", bytearray(limit + 1))
        with pytest.raises(BufferError, match="buffer is read-only"):
            cache.get_into("long", bytes(8))
        assert cache.set("long", b"new") and cache.get("long") == b"new"


def test_numbers_are_added_once(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as cache:
        cache.delete("number")
        with pytest.raises(nvlane.CommandError) as missing:
            cache.incr("number")
        assert missing.value.status is not None and not missing.value.may_have_happened
        assert cache.incr("number", 5, initial=10) == 15

        def add() -> None:
            for _ in range(100):
                cache.incr("number")

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cache.incr("number", -15) == 400
        assert cache.compare_and_swap("number", 400, 1) and not cache.compare_and_swap("number", 400, 2)
        assert cache.get("number") == (1).to_bytes(8, "little")


def test_many_keys_at_once(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1), lanes=2) as cache:
        names = [f"many-{number}" for number in range(3000)]
        values = [key.encode() * (number % 7) for number, key in enumerate(names)]
        assert cache.set_many(names, values) == [True] * 3000
        assert cache.get_many(names) == values
        assert cache.get_many([]) == []
        assert cache.get_many(["none", names[1]]) == [None, values[1]]
        buffers = [bytearray(len(value)) for value in values]
        assert cache.get_many_into(names, buffers) == [True] * 3000
        assert [bytes(buffer) for buffer in buffers] == values
        assert cache.exists_many([*names, "none"]) == [True] * 3000 + [False]
        assert set(names) <= {key.decode() for key in cache.keys()}
        cache.delete_many([*names, "none"])
        assert not any(cache.exists_many(names))


def test_values_of_long_keys_move_in_place(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1), lanes=3) as cache:
        names = [f"model@{rank:08x}@0@" + f"{rank:064x}" for rank in range(6)]
        lengths = [1, 4096, (1 << 20) + 1, 5 << 20, 9 << 20, 12345]
        values = [numpy.frombuffer(os.urandom(length), numpy.uint8) for length in lengths]
        assert cache.set_many(names, values) == [True] * 6
        assert cache.set_many(names, values, if_absent=True) == [False] * 6
        buffers = [numpy.zeros(length, numpy.uint8) for length in lengths]
        assert cache.get_many_into(names, buffers) == [True] * 6
        assert all((buffer == value).all() for buffer, value in zip(buffers, values))
        # Several buffers for one value; another length is told from no value.
        halves = [bytearray(4 << 20), bytearray(5 << 20)]
        assert cache.get_many_into([names[4], names[3], "none"], [halves, bytearray(7), bytearray(7)]) == [
            True,
            False,
            None,
        ]
        assert b"".join(halves) == values[4].tobytes()
        assert cache.get(names[1]) == values[1].tobytes()
        assert cache.get(names[3]) == values[3].tobytes()
        assert cache.get(names[1] + "x") is None
        assert cache.get_many([names[0], "none"]) == [values[0].tobytes(), None]
        assert cache.get_into(names[1], bytearray(10)) == 4096
        assert cache.set(names[1], b"new") and cache.get(names[1]) == b"new"
        assert cache.set_many(["empty-1", names[1]], [b"", b"new"], if_absent=True) == [True, False]
        assert cache.get_many_into(["empty-1", "empty-2", names[1]], [bytearray(), bytearray(), bytearray()]) == [
            True,
            None,
            False,
        ]
        assert cache.exists(names[1]) and cache.exists_many([*names, "none"]) == [True] * 6 + [False]
        assert cache.exists_many([*names, "none"], lease=5) == [True] * 6 + [False]
        assert cache.pin_many([*names, "none"], 60) == [True] * 6 + [False]
        cache.unpin_many([*names, "none"])
        for lease in (0, 86_401):
            with pytest.raises(ValueError, match=f"lease of {lease} seconds: a pin has 1 to 86400"):
                cache.pin_many(names, lease)
        cache.delete(names[0])
        assert cache.exists_many(names) == [False] + [True] * 5
        cache.delete_many(names)
        assert not any(cache.exists_many(names))
        cache.set_many(["short-lived"], [b"v"], ttl=1)
        assert cache.exists("short-lived")
        time.sleep(2.1)
        assert not cache.exists("short-lived")


def test_arrays_of_ctypes_are_buffers(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as cache:
        array = (ctypes.c_uint16 * 4)(1, 2, 3, 4)
        assert cache.set("ctypes", array) and cache.set_many(["ctypes-long-enough-a-key"], [array]) == [True]
        one, other = (ctypes.c_uint16 * 4)(), ctypes.create_string_buffer(8)
        assert cache.get_into("ctypes", one) == 8
        assert cache.get_many_into(["ctypes-long-enough-a-key"], [other]) == [True]
        assert bytes(one) == other.raw == bytes(array) == b"\1\0\2\0\3\0\4\0"
        with pytest.raises(BufferError, match="not contiguous"):
            cache.set("ctypes", memoryview(array)[::2])


def test_invalid_arguments_say_which_and_why(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as cache:
        for call, kind, words in [
            (lambda: cache.get(""), ValueError, "has 0 bytes"),
            (lambda: cache.get("k" * 1000), ValueError, "has 1000 bytes"),
            (lambda: cache.get(7), TypeError, "not int"),
            (lambda: cache.set("key", "text"), TypeError, "encode it"),
            (lambda: cache.set("key", None), TypeError, "value has to be bytes"),
            (lambda: cache.set("key", b"", if_absent=True, if_present=True), ValueError, "exclude"),
            (lambda: cache.get_many("keys"), TypeError, "list of keys"),
            (lambda: cache.set_many(["a"], []), ValueError, "1 keys and 0 values"),
            (lambda: cache.incr("k" * 17), ValueError, "17 bytes"),
            (lambda: cache.set_many(["a"], [[b"x", 7]]), TypeError, r"values\[0\]"),
            (lambda: cache.get_many_into(["a"], [b"fixed"]), BufferError, r"buffers\[0\] is read-only"),
        ]:
            with pytest.raises(kind, match=words):
                call()


def test_options_out_of_range_are_named(keys: Target) -> None:
    for option in [{"lanes": 1 << 70}, {"lanes": -1}, {"depth": 70_000}, {"depth": -1}]:
        [(name, value)] = option.items()
        with pytest.raises(ValueError, match=f"{name}={value}"):
            nvlane.KeyValue(keys.address(1), **option)


def test_a_process_without_threads_is_told_so(keys: Target) -> None:
    """Where the system starts no thread (here: no memory for its stack), the error says that, and later calls find one."""
    script = f"""
import resource, nvlane
cache = nvlane.KeyValue({keys.address(1)!r})
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), hard))
for call in (lambda: cache.exists_many(["a"]), lambda: nvlane.KeyValue({keys.address(1)!r})):
    try:
        call()
    except nvlane.ResourceError as error:
        assert "cannot start a thread" in str(error) and error.errno == 11, error
    else:
        raise AssertionError("there was a thread")
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert cache.exists_many(["a-key-that-is-not-there"]) == [False]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_python_goes_on_beside_large_gets(keys: Target) -> None:
    """A thread that counts keeps most of its rate while other threads wait for values."""

    def count(seconds: float) -> int:
        end, counted = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            counted += 1
        return counted

    with nvlane.KeyValue(keys.address(1)) as cache:
        cache.set("beside", bytes(8 << 20))
        buffers = [bytearray(8 << 20) for _ in range(2)]
        stop = threading.Event()

        def get(buffer: bytearray) -> None:
            while not stop.is_set():
                assert cache.get_many_into(["beside"], [buffer]) == [True]

        alone = count(0.3)
        threads = [threading.Thread(target=get, args=(buffer,)) for buffer in buffers]
        for thread in threads:
            thread.start()
        beside = count(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        # Cores are shared with the target here: what is checked is that no wait holds the interpreter's lock.
        assert beside > alone / 10
