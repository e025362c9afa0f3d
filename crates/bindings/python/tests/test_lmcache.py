"""LMCache's storage, called as its adapter calls it: two submitting threads and one that drains."""

import os
import select
import threading
import time

import pytest
from conftest import Target
from nvlane.lmcache import Client


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
