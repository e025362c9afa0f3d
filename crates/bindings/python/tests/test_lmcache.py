"""LMCache's storages: the native plugin, called as its adapter calls it (two submitting threads and one that drains), and the
remote storage, whose coroutines run in an event loop of another thread."""

import asyncio
import gc
import os
import select
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import nvlane
import pytest
from conftest import Target
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from nvlane.lmcache import Client, Connector


def wait_for(client: Client, numbers: set[int], seconds: float = 20) -> dict[int, tuple[bool, str, list[bool] | None]]:
    poll = select.poll()
    poll.register(client.event_fd(), select.POLLIN)
    ended: dict[int, tuple[bool, str, list[bool] | None]] = {}
    deadline = time.monotonic() + seconds
    while not numbers <= ended.keys():
        assert poll.poll(max(0, (deadline - time.monotonic()) * 1000)), "an operation has not ended"
        ended |= {number: (ok, error, found) for number, ok, error, found in client.drain_completions()}
    return ended


def names(count: int) -> list[str]:
    return [f"meta-llama/Llama-3.1-8B@0000000{index % 8}@0@{index:064x}" for index in range(count)]


def test_batches_are_stored_found_and_deleted(keys: Target) -> None:
    client = Client(keys.address(1), prefix="a/")
    other = Client(keys.address(1), prefix="b/")
    chunks = names(12)
    values = [os.urandom((1 + index) << 18) for index in range(12)]
    stored = client.submit_batch_set(chunks, [memoryview(value) for value in values])
    assert wait_for(client, {stored})[stored] == (True, "", None)
    asked = client.submit_batch_exists([*chunks, "none", "k" * 300])
    assert wait_for(client, {asked})[asked] == (True, "", [True] * 12 + [False] * 2)
    asked = other.submit_batch_exists(chunks)
    assert wait_for(other, {asked})[asked][2] == [False] * 12
    buffers = [bytearray(len(value)) for value in values] + [bytearray(5), bytearray(5)]
    got = client.submit_batch_get([*chunks, "none", chunks[0]], [memoryview(buffer) for buffer in buffers])
    assert wait_for(client, {got})[got] == (True, "", [True] * 12 + [False] * 2)
    assert [bytes(buffer) for buffer in buffers[:12]] == values
    deleted = client.submit_batch_delete(chunks[:2])
    asked = client.submit_batch_exists(chunks)
    assert wait_for(client, {deleted, asked})[asked][2] == [False] * 2 + [True] * 10
    client.close()
    client.close()
    other.close()


def test_each_key_has_one_buffer(keys: Target) -> None:
    client = Client(keys.address(1))
    for count in [0, 1, 3]:
        buffers = [memoryview(bytearray(4)) for _ in range(count)]
        with pytest.raises(ValueError, match=f"2 keys and {count} values"):
            client.submit_batch_set(["one", "two"], buffers)
        with pytest.raises(ValueError, match=f"2 keys and {count} buffers"):
            client.submit_batch_get(["one", "two"], buffers)
    client.close()


def test_chunks_that_were_found_are_not_evicted_within_their_lease() -> None:
    # Half of a partition can be pinned, and all four keys may be of one partition.
    target = Target("kv:ram:16M")
    client, other = Client(target.address(1), lease=60), nvlane.KeyValue(target.address(1))
    chunks = names(4)
    values = [os.urandom(1 << 19) for _ in chunks]
    stored = client.submit_batch_set(chunks, [memoryview(value) for value in values])
    asked = client.submit_batch_exists([*chunks, "none"])
    assert wait_for(client, {stored, asked})[stored][0]
    asked = client.submit_batch_exists([*chunks, "none"])
    assert wait_for(client, {asked})[asked] == (True, "", [True] * 4 + [False])
    for number in range(40):
        assert other.set_many([f"other-{number}"], [bytes(1 << 20)]) == [True]
    buffers = [bytearray(1 << 19) for _ in chunks]
    got = client.submit_batch_get(chunks, [memoryview(buffer) for buffer in buffers])
    assert wait_for(client, {got})[got][2] == [True] * 4
    assert [bytes(buffer) for buffer in buffers] == values
    other.close()
    client.close()
    target.stop()


def test_every_operation_of_every_thread_ends(keys: Target) -> None:
    client = Client(keys.address(1), lanes=2)
    numbers: set[int] = set()
    lock = threading.Lock()

    def submit(thread: int) -> None:
        value = bytes([thread]) * 4096
        for turn in range(100):
            number = client.submit_batch_set([f"thread-{thread}-{turn}"], [memoryview(value)])
            with lock:
                numbers.add(number)

    threads = [threading.Thread(target=submit, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 200
    assert all(ok for ok, _, _ in wait_for(client, numbers).values())
    client.close()


def test_a_lost_target_costs_misses_and_is_used_again() -> None:
    target = Target("kv:ram:64M")
    client = Client(target.address(1), lanes=2, timeout=2.0)
    value = os.urandom(1 << 20)
    stored = client.submit_batch_set(["kept"], [memoryview(value)])
    assert wait_for(client, {stored})[stored][0]
    target.kill()
    start = time.monotonic()
    buffer = bytearray(len(value))
    lost = client.submit_batch_get(["kept"], [memoryview(buffer)])
    ok, error, found = wait_for(client, {lost})[lost]
    assert (ok, found) == (False, None) and error
    assert time.monotonic() - start < 12
    target.start()
    deadline = time.monotonic() + 30
    while True:
        asked = client.submit_batch_exists(["kept"])
        ok, _, found = wait_for(client, {asked})[asked]
        if ok:
            break
        assert time.monotonic() < deadline, "the target is back"
        time.sleep(0.1)
    assert found == [False], "it is another memory"
    client.close()
    target.kill()


def test_invalid_arguments(keys: Target) -> None:
    client = Client(keys.address(1))
    with pytest.raises(BufferError, match=r"buffers\[0\] is read-only"):
        client.submit_batch_get(["key"], [memoryview(b"fixed")])
    with pytest.raises(TypeError, match="no argument lane"):
        Client(keys.address(1), lane=1)  # type: ignore[call-arg]
    client.close()


SHAPE = (2, 4, 16, 4096)


class Chunk:
    """Memory of LMCache, and how many hold it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.count = shape, 1
        self.byte_array = bytearray(shape[0] * shape[1] * shape[2] * shape[3])

    def ref_count_up(self) -> None:
        self.count += 1

    def ref_count_down(self) -> None:
        assert self.count > 0
        self.count -= 1

    def get_shapes(self) -> list[tuple[int, ...]]:
        return [self.shape]

    def get_dtypes(self) -> list[int]:
        return [6]

    def get_memory_format(self) -> int:
        return 1


class Memory:
    """LMCache's memory: the chunks that it has given."""

    def __init__(self) -> None:
        self.given: list[Chunk] = []
        self.room = 1000

    def allocate(self, shapes: list[tuple[int, ...]], dtypes: list[int], fmt: int) -> Chunk | None:
        if len(self.given) == self.room:
            return None
        self.given.append(Chunk(shapes[0]))
        return self.given[-1]


class Key(str):
    def to_string(self) -> str:
        return str(self)


def chunk(shape: tuple[int, ...] = SHAPE) -> Chunk:
    made = Chunk(shape)
    made.byte_array[:] = os.urandom(len(made.byte_array))
    return made


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def context(address: Any, plugin: str = "nvlane", **options: Any) -> ConnectorContext:
    extra = {f"remote_storage_plugin.{plugin}.{name}": value for name, value in {"address": address, **options}.items()}
    extra |= {f"remote_storage_plugin.{plugin}.class_name": "Connector", "remote_storage_plugin.other.address": "nowhere"}
    metadata = SimpleNamespace(get_shapes=lambda: [SHAPE], get_dtypes=lambda: [6])
    config = SimpleNamespace(extra_config=extra)
    return ConnectorContext(f"plugin://{plugin}", None, Memory(), config, metadata, plugin)


def connector(given: ConnectorContext) -> Any:
    adapter = Connector()
    assert isinstance(adapter, ConnectorAdapter) and adapter.can_parse(given.url)
    made = adapter.create_connector(given)
    assert isinstance(made, RemoteConnector)
    return made


def test_chunks_of_a_remote_storage(keys: Target, loop: asyncio.AbstractEventLoop) -> None:
    given = context(keys.address(1), "nvlane.first", prefix="remote/", lanes=2)
    memory = given.local_cpu_backend
    storage = connector(given)

    def run(method: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(method(*arguments), loop).result(30)

    chunks = [Key(name) for name in names(4)]
    # The last chunk of a prompt is shorter.
    values = [chunk(), chunk(), chunk((2, 4, 5, 4096))]
    run(storage.batched_put, chunks[:2], values[:2])
    run(storage.put, chunks[2], values[2])
    assert [value.count for value in values] == [1, 1, 1]
    assert run(storage.exists, chunks[1]) and not run(storage.exists, chunks[3])
    assert storage.exists_sync(chunks[2]) and not storage.exists_sync(Key("k" * 300))
    assert storage.batched_contains(chunks) == run(storage.batched_async_contains, "lookup", chunks) == 3
    got = run(storage.batched_get, [chunks[2], chunks[3], chunks[0]])
    assert got[1] is None
    assert [got[0].byte_array, got[2].byte_array] == [values[2].byte_array, values[0].byte_array]
    assert [got[0].shape, got[2].shape] == [values[2].shape, SHAPE]
    # None is held but those that were returned.
    assert sum(one.count for one in memory.given) == 2
    first = run(storage.batched_get_non_blocking, "lookup", [chunks[1], chunks[3], chunks[0]])
    assert [one.byte_array for one in first] == [values[1].byte_array]
    assert sum(one.count for one in memory.given) == 3
    memory.room = len(memory.given) + 1
    assert [one is not None for one in run(storage.batched_get, chunks[:2])] == [True, False]
    assert run(storage.get, chunks[0]) is None
    assert storage.remove_sync(chunks[0]) and not storage.exists_sync(chunks[0])
    assert run(storage.ping) == 0
    with pytest.raises(NotImplementedError, match="up to 16 bytes"):
        run(storage.list)
    run(storage.close)


def test_a_damaged_chunk_is_a_miss_and_is_replaced(keys: Target, loop: asyncio.AbstractEventLoop) -> None:
    storage = connector(context(keys.address(1), prefix="damaged/"))
    key, value = Key(names(1)[0]), chunk()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    run(storage.put(key, value))
    with nvlane.KeyValue(keys.address(1)) as client:
        for damaged in (b"", b"short", bytes(28) + b"x", b"\xff" * 100):
            client.set_many([b"damaged/" + key.encode()], [damaged])
            assert storage.exists_sync(key)
            assert run(storage.get(key)) is None
            assert not storage.exists_sync(key)
    run(storage.put(key, value))
    assert run(storage.get(key)).byte_array == value.byte_array
    run(storage.close())


def test_memory_is_held_until_cancelled_transfers_have_ended(keys: Target, loop: asyncio.AbstractEventLoop) -> None:
    given = context(keys.address(1), prefix="cancelled/")
    storage, memory = connector(given), given.local_cpu_backend
    chunks, values = [Key(name) for name in names(8)], [chunk() for _ in range(8)]

    async def cancelled(transfer: Coroutine[Any, Any, Any], held: list[Chunk], count: int) -> None:
        task = asyncio.ensure_future(transfer)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [one.count for one in held] == [count] * 8
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [one.count for one in held] == [count] * 8
        deadline = time.monotonic() + 30
        while [one.count for one in held] != [count - 1] * 8:
            assert time.monotonic() < deadline, "the memory is released"
            await asyncio.sleep(0.01)

    async def both() -> None:
        await cancelled(storage.batched_put(chunks, values), values, 2)
        assert await storage.batched_async_contains("lookup", chunks) == 8
        await cancelled(storage.batched_get(chunks), memory.given, 1)
        await storage.close()

    asyncio.run_coroutine_threadsafe(both(), loop).result(60)
    gc.collect()


def test_a_remote_storage_that_is_lost_raises_and_is_used_again(loop: asyncio.AbstractEventLoop) -> None:
    target = Target("kv:ram:64M")
    storage = connector(context(target.address(1), timeout=2.0, lanes=1))
    key, value = Key("kept"), chunk()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    run(storage.put(key, value))
    target.kill()
    start = time.monotonic()
    with pytest.raises(nvlane.Error):
        run(storage.get(key))
    assert run(storage.ping()) == 1
    assert time.monotonic() - start < 20
    target.start()
    deadline = time.monotonic() + 30
    while run(storage.ping()):
        assert time.monotonic() < deadline, "the target is back"
    assert run(storage.get(key)) is None, "it is another memory"
    run(storage.close())
    target.kill()


def test_invalid_options_of_a_remote_storage(keys: Target) -> None:
    without = context(keys.address(1))
    del without.config.extra_config["remote_storage_plugin.nvlane.address"]
    with pytest.raises(ValueError, match=r"remote_storage_plugin\.nvlane\.address has to be HOST"):
        connector(without)
    with pytest.raises(TypeError, match="no argument lane"):
        connector(context(keys.address(1), lane=1))
