"""Keys that are spread over several targets, of which some are killed or stopped."""

import asyncio
import os
import select
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import nvlane
import nvlane.aio
import pytest
from conftest import NQN, Target
from nvlane import _engines
from nvlane.lmcache import Client

M = (1 << 64) - 1


# The program of docs/design/spread.md.
def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M
    return x ^ x >> 31


def hash64(data: bytes) -> int:
    h = 0
    for at in range(0, len(data), 8):
        h = mix(h ^ int.from_bytes(data[at : at + 8], "little"))
    return mix(h ^ len(data))


def cost(u: int) -> int:
    zeros = 64 - u.bit_length()
    m, fraction = u << zeros, 0
    for _ in range(24):
        m = m * m >> 63
        fraction = fraction << 1 | m >> 64
        m >>= m >> 64
    return (zeros + 1 << 24) - fraction


def rank(key: bytes, targets: dict[str, int]) -> list[str]:
    u = {name: max(mix(hash64(key) ^ hash64(name.encode())), 1) for name in targets}
    return sorted(targets, key=lambda name: (Fraction(cost(u[name]), targets[name]), -u[name]))


@pytest.fixture
def three() -> Iterator[list[Target]]:
    targets = [Target("kv:ram:256M") for _ in range(3)]
    yield targets
    for target in targets:
        target.resume()
        target.kill()


def addresses(targets: list[Target]) -> list[str]:
    return [f"127.0.0.1:{target.port}/{NQN}" for target in targets]


def wait_until(cache: nvlane.KeyValue, up: list[bool]) -> None:
    deadline = time.monotonic() + 90
    while [target[1] for target in cache.targets()] != up:
        assert time.monotonic() < deadline, cache.targets()
        time.sleep(0.01)


def test_all_methods_and_the_documented_rank(three: list[Target]) -> None:
    weights = [1, 2, 3]
    with nvlane.KeyValue(addresses(three), lanes=2, weights=weights, deadline=20, connect_timeout=60) as cache:
        wait_until(cache, [True] * 3)
        assert cache.set("key", b"value") and cache.get("key") == b"value"
        assert not cache.set("key", b"other", if_absent=True) and not cache.set("none", b"other", if_present=True)
        assert cache.get("none") is None and cache.exists("key") and not cache.exists("none")
        assert cache.set("empty", b"") and cache.get("empty") == b""
        buffer = bytearray(8)
        assert cache.get_into("key", buffer) == 5 and bytes(buffer) == b"value\0\0\0"
        assert cache.get_into("key", bytearray(2)) == 5 and cache.get_into("none", buffer) is None
        cache.delete("key")
        assert not cache.exists("key")
        assert cache.incr("number", 5, initial=10) == 15 and cache.incr("number") == 16
        assert cache.compare_and_swap("number", 16, 1) and not cache.compare_and_swap("number", 16, 2)
        with pytest.raises(nvlane.CommandError):
            cache.incr("none")
        keys = [f"many-{number:0{number % 200 + 1}}" for number in range(2500)]
        values = [key.encode() * (number % 7) for number, key in enumerate(keys)]
        assert cache.set_many(keys, values) == [True] * 2500
        assert cache.get_many(keys[:50]) == values[:50]
        buffers = [bytearray(len(value)) for value in values]
        assert cache.get_many_into(keys, buffers) == [True] * 2500
        assert [bytes(buffer) for buffer in buffers] == values
        assert cache.exists_many([*keys, "none"]) == [True] * 2500 + [False]
        named = dict(zip(addresses(three), weights))
        owners = [rank(key.encode(), named)[0] for key in keys]
        for address, weight in named.items():
            with nvlane.KeyValue(address) as alone:
                assert alone.exists_many(keys) == [owner == address for owner in owners]
            assert abs(owners.count(address) / 2500 - weight / 6) < 0.05
        cache.delete_many(keys)
        assert not any(cache.exists_many(keys))
        cache.flush()
        assert cache.value_size_max >= 1 << 20
        with pytest.raises(ValueError, match="keys_after is of one target"):
            cache.keys_after()
        with pytest.raises(ValueError, match="limit"):
            cache.set("larger", bytearray(cache.value_size_max + 1))
    with pytest.raises(ValueError, match="closed"):
        cache.get("key")


def test_a_lost_target_costs_misses_and_is_used_again(three: list[Target]) -> None:
    with nvlane.KeyValue(addresses(three), lanes=2, deadline=2, connect_timeout=60) as cache:
        wait_until(cache, [True] * 3)
        keys = [f"chunk-{number:064x}" for number in range(60)]
        values = [os.urandom((number % 5) << 18) for number in range(60)]
        stored = dict(zip(keys, values))

        def timed_round() -> float:
            start = time.monotonic()
            cache.set_many(keys, values)
            buffers = [bytearray(len(value)) for value in values]
            for key, found, buffer in zip(keys, cache.get_many_into(keys, buffers), buffers):
                assert not found or buffer == stored[key]
            cache.exists_many(keys)
            got = cache.get(keys[1])
            assert got is None or got == values[1]
            return time.monotonic() - start

        for turn, target in enumerate(three):
            if turn == 1:
                target.pause()
            else:
                target.kill()
            # Each of four calls may wait for the deadline, on a busy machine longer.
            assert timed_round() < 60
            # Others take its place; on a busy machine they may be lost for a moment as well.
            deadline = time.monotonic() + 60
            while not (all(cache.set_many(keys, values)) and all(cache.exists_many(keys))):
                assert time.monotonic() < deadline, cache.targets()
            assert not dict(zip(three, (up for _, up, _, _ in cache.targets())))[target]
            if turn == 1:
                target.resume()
            else:
                target.start()
            wait_until(cache, [True] * 3)
            timed_round()
        assert [name for name, _, losses, _ in cache.targets() if losses == 0] == []


def test_without_any_target_everything_is_a_miss(three: list[Target]) -> None:
    with nvlane.KeyValue(addresses(three), deadline=0.5, connect_timeout=60) as cache:
        wait_until(cache, [True] * 3)
        assert cache.set("key", b"value")
        for target in three:
            target.kill()
        start = time.monotonic()
        assert cache.get("key") is None and not cache.exists("key") and not cache.set("key", b"value")
        assert cache.set_many(["a", "b"], [b"1", b"2"]) == [False, False]
        assert cache.get_many_into(["a"], [bytearray(1)]) == [None]
        cache.delete("key")
        with pytest.raises(nvlane.CommandError):
            cache.incr("number", initial=0)
        assert time.monotonic() - start < 60
        wait_until(cache, [False] * 3)
        # A connection may end before its target's admin queue does: then the next attempt gives the cause.
        deadline = time.monotonic() + 60
        while not all("127.0.0.1" in (cause or "") for _, _, _, cause in cache.targets()):
            assert time.monotonic() < deadline, cache.targets()
            time.sleep(0.01)


def test_values_that_are_replaced_are_at_one_target_alone(three: list[Target]) -> None:
    with nvlane.KeyValue(addresses(three), deadline=3, immutable=False, connect_timeout=60) as cache:
        wait_until(cache, [True] * 3)
        keys = [f"key-{number}" for number in range(30)]
        assert all(cache.set_many(keys, [b"old"] * 30))
        names = dict.fromkeys(addresses(three), 1)
        lost = [key for key in keys if rank(key.encode(), names)[0] == addresses(three)[0]]
        three[0].pause()
        for method in (lambda: cache.get(lost[0]), lambda: cache.set(lost[0], b"new"), lambda: cache.delete(lost[0])):
            with pytest.raises(nvlane.CommandError):
                method()
        kept = [key for key in keys if key not in lost]
        assert all(cache.set_many(kept, [b"new"] * len(kept)))
        three[0].resume()
        wait_until(cache, [True] * 3)
        assert [cache.get(key) for key in kept] == [b"new"] * len(kept)


def test_asyncio(three: list[Target]) -> None:
    async def main() -> None:
        async with await nvlane.aio.KeyValue.open(addresses(three), copies=2, deadline=20, connect_timeout=60) as cache:
            while not all(up for _, up, _, _ in await cache.targets()):
                await asyncio.sleep(0.01)
            names = [f"key-{number}" for number in range(100)]
            assert all(await cache.set_many(names, [name.encode() for name in names]))
            assert await asyncio.gather(*(cache.get(name) for name in names)) == [name.encode() for name in names]
            assert all(await cache.exists_many(names))
            assert len(await cache.targets()) == 3

    asyncio.run(main())


def test_lmcache(three: list[Target]) -> None:
    client = Client(addresses(three), copies=2, deadline=20, connect_timeout=60)
    wait_until(client._client, [True] * 3)
    poll = select.poll()
    poll.register(client.event_fd(), select.POLLIN)

    def wait(number: int) -> tuple[bool, str, "list[bool] | None"]:
        deadline = time.monotonic() + 20
        while True:
            assert poll.poll(max(0, (deadline - time.monotonic()) * 1000)), "an operation has not ended"
            for ended, ok, error, found in client.drain_completions():
                assert ended == number
                return ok, error, found

    keys = [f"meta-llama/Llama-3.1-8B@00000000@0@{number:064x}" for number in range(20)]
    values = [os.urandom(1 << 20) for _ in keys]
    assert wait(client.submit_batch_set(keys, [memoryview(value) for value in values])) == (True, "", None)
    three[0].kill()
    buffers = [bytearray(1 << 20) for _ in keys]
    ok, error, found = wait(client.submit_batch_get(keys, [memoryview(buffer) for buffer in buffers]))
    assert (ok, error, found) == (True, "", [True] * 20), "each value has a second copy"
    assert [bytes(buffer) for buffer in buffers] == values
    assert wait(client.submit_batch_exists([*keys, "none"])) == (True, "", [True] * 20 + [False])
    client.close()


def test_invalid_arguments(three: list[Target]) -> None:
    two = addresses(three)[:2]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"copies": 3}, "3 copies on 2 targets"),
        ({"copies": -1}, "copies=-1: write 1"),
        ({"copies": 2, "immutable": False}, "copies are for immutable values"),
        ({"weights": [1]}, "1 weights for 2 addresses"),
        ({"weights": [1, 0]}, "weight 0: write 1"),
        ({"weights": [1, 65536]}, "write 1 to 65535"),
        ({"names": ["a", "a"]}, "two targets are named a"),
        ({"deadline": 0}, "deadline=0: write seconds"),
        ({"fast_io_fail": 1.0}, "fast_io_fail is for one target"),
        ({"reconnect_timeout": 1.0}, "reconnect_timeout is for one target"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            nvlane.KeyValue(two, **options)
    with pytest.raises(ValueError, match="not 0"):
        nvlane.KeyValue([])
    with pytest.raises(ValueError, match="copies is for several targets"):
        nvlane.KeyValue(two[0], copies=2)
    with pytest.raises(ValueError, match="here names no subsystem"):
        nvlane.KeyValue([two[0], "here"])
    with pytest.raises(TypeError, match="str or a list of str"):
        nvlane.KeyValue([1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="str or a list of str"):
        nvlane.KeyValue(1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no argument copy"):
        nvlane.KeyValue(two, copy=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="weights"):
        nvlane.KeyValue(two, weights="ab")  # type: ignore[arg-type]
    with pytest.raises(nvlane.ConnectionLost, match="no subsystem"):
        nvlane.KeyValue([two[0], f"127.0.0.1:{three[1].port}/nqn.2026-01.io.nvlane:none"])
    # What the modules for engines connect.
    _engines.connect(two, {"connect_timeout": 60.0}).close()
    with nvlane.KeyValue(two[0]) as alone, pytest.raises(ValueError, match="pass a list of addresses"):
        alone.targets()
