"""Clients of asyncio, the event descriptor, and the fsspec file system."""

import asyncio
import os
import select

import fsspec
import nvlane
import nvlane.aio
import pytest
from conftest import Target


def test_coroutines_run_together(target: Target, keys: Target) -> None:
    async def run() -> None:
        async with await nvlane.aio.Blocks.open(target.address(2)) as disk:
            data = [os.urandom(4096) for _ in range(64)]
            await asyncio.gather(*(disk.write(index * 4096, data[index]) for index in range(64)))
            await disk.flush()
            assert await asyncio.gather(*(disk.read(index * 4096, 4096) for index in range(64))) == data
            with pytest.raises(ValueError):
                await disk.read(1, 1)
        assert disk.closed
        async with await nvlane.aio.KeyValue.open(keys.address(1)) as cache:
            assert await cache.set("aio", b"value")
            assert await cache.get("aio") == b"value"
            assert await cache.incr("aio-number", initial=1) == 2
            await cache.set_many(["aio-1", "aio-2"], [b"1", b"2"])
            assert await cache.get_many(["aio-2", "aio-1", "aio-0"]) == [b"2", b"1", None]
            assert await cache.exists_many(["aio-1", "aio-0"]) == [True, False]
            assert {b"aio", b"aio-1", b"aio-2"} <= {key async for key in cache.keys()}
            await cache.delete_many(["aio-1", "aio-0"])
            assert not await cache.exists("aio-1")
            with pytest.raises(nvlane.CommandError):
                await cache.incr("aio")

    asyncio.run(run())


def test_long_values_move_beside_block_namespaces(keys_beside_blocks: Target) -> None:
    async def run() -> None:
        async with await nvlane.aio.KeyValue.open(keys_beside_blocks.address(2)) as cache:
            values = [os.urandom(length) for length in (100, 1 << 20, (1 << 20) + 1, 4 << 20)]
            names = [f"aio-{len(value)}" for value in values]
            assert all(await asyncio.gather(*(cache.set(*pair) for pair in zip(names, values))))
            assert await asyncio.gather(*(cache.get(name) for name in [*names, "aio-none"])) == [*values, None]
            buffers = [bytearray(len(value)) for value in values]
            filled = asyncio.gather(*(cache.get_into(*pair) for pair in zip(names, buffers)))
            assert await filled == [len(value) for value in values] and buffers == values
            assert await cache.get_into("aio-none", buffers[3]) is None
            cancelled = asyncio.create_task(cache.get_into(names[3], buffers[3]))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await cache.get(names[3]) == values[3]

    asyncio.run(run())


def test_a_cancelled_task_leaves_nothing(own_target: Target) -> None:
    async def run() -> None:
        async with await nvlane.aio.Blocks.open(own_target.address(1)) as disk:
            own_target.kill()
            buffer = bytearray(4096)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(disk.read_into(0, buffer), 0.2)
            own_target.start()
            assert await asyncio.wait_for(disk.read(0, 4096), 20) == bytes(4096)
            # The lane has let go of the cancelled command's buffer.
            buffer.extend(b"more")

    asyncio.run(run())


def test_an_event_descriptor_announces_completions(keys: Target) -> None:
    completions = nvlane.Completions()
    with nvlane.KeyValue(keys.address(1)) as cache:
        poll = select.poll()
        poll.register(completions.fileno(), select.POLLIN)
        numbers = {cache.set(f"event-{index}", b"v", completions=completions) for index in range(100)}
        failing = cache.incr("event-0", completions=completions)
        ended = {}
        while len(ended) < 101:
            assert poll.poll(10_000)
            ended |= {number: (result, error) for number, result, error in completions.drain()}
        assert ended.keys() == numbers | {failing}
        assert all(ended[number] == (True, None) for number in numbers)
        assert isinstance(ended[failing][1], nvlane.CommandError)
        assert len(completions) == 0 and completions.drain() == []
        number = cache.get("event-0", completions=completions)
        completions.cancel(number)
        assert not completions.cancel(number)
        completions.close()
        with pytest.raises(ValueError, match="closed"):
            cache.get("event-0", completions=completions)


def test_fsspec_reads_a_namespace(target: Target) -> None:
    if "nvlane" not in fsspec.available_protocols():
        # The wheel's entry point is there only where the wheel is installed.
        fsspec.register_implementation("nvlane", "nvlane.filesystem.NvlaneFileSystem")
    data = os.urandom(10_000)
    with nvlane.Blocks(target.address(1)) as disk:
        disk.write(0, data + bytes(-len(data) % 512))
    url = "nvlane://" + target.address(1)
    with fsspec.open(url, "rb") as file:
        assert file.seek(0, os.SEEK_END) == 64 << 20
        file.seek(3)
        assert file.read(5000) == data[3:5003]
    system, path = fsspec.core.url_to_fs(url)
    assert system.cat_file(path, 511, 1025) == data[511:1025]
    assert system.cat_file(path, -4) == bytes(4)
    assert system.info(path)["size"] == 64 << 20
    with pytest.raises(ValueError, match="nvlane.Blocks writes"):
        fsspec.open(url, "wb").open()
