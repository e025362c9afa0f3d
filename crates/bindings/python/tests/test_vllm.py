"""vLLM's secondary tier, called as its tiering manager calls it."""

import mmap
import os
import select
import time
from types import SimpleNamespace
from typing import Any

import numpy
import nvlane
import nvlane.vllm
import pytest
from conftest import Target
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob

CHUNKS = 8
CHUNK_BYTES = 1 << 18
CONTEXT = ReqContext(req_id="test")


def spec(model: str = "test-model", rank: int = 0, tp_size: int = 1, events: bool = False) -> Any:
    parallel = SimpleNamespace(
        rank=rank, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False
    )
    config = SimpleNamespace(
        groups=(),
        model=SimpleNamespace(name=model, dtype="float32"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=parallel,
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout=None,
    )
    return SimpleNamespace(
        config=config, blocks_per_chunk=1, kv_events_config=SimpleNamespace(enable_kv_cache_events=events)
    )


class Tier:
    """A tier over memory of its own."""

    def __init__(self, address: Any, prefix: str, chunk_bytes: int = CHUNK_BYTES, **options: Any) -> None:
        # As vLLM's: it cannot be closed while anything refers to it.
        self.map = mmap.mmap(-1, CHUNKS * chunk_bytes)
        self.memory = numpy.frombuffer(self.map, numpy.int8).reshape(CHUNKS, chunk_bytes)
        self.view = memoryview(self.memory)
        own = {name: options.pop(name) for name in ("model", "rank", "tp_size", "events") if name in options}
        # As its factory: by the name in the configuration.
        made = getattr(nvlane.vllm, "NvlaneTier")
        assert issubclass(made, SecondaryTierManager)
        # A busy machine is no lost target.
        patient = {"lanes": 2, "connect_timeout": 60.0, "fast_io_fail": 30.0, "timeout": 30.0}
        options.setdefault("options", None if isinstance(address, nvlane.KeyValue) else patient)
        self.tier = made(
            offloading_spec=spec(**own),
            primary_kv_view=self.view,
            tier_type="NvlaneTier",
            backpressure_detector=None,
            address=address,
            prefix=prefix,
            **options,
        )
        self.job_id = 0

    def fill(self) -> None:
        self.memory[...] = numpy.frombuffer(os.urandom(self.memory.nbytes), numpy.int8).reshape(self.memory.shape)

    def job(self, keys: list[bytes], chunks: list[int], is_load: bool) -> int:
        self.job_id += 1
        job = TransferJob(self.job_id, keys, numpy.array(chunks, numpy.int64), is_load, CONTEXT)
        (self.tier.submit_load if is_load else self.tier.submit_store)(job)
        return self.job_id

    def run(self, keys: list[bytes], chunks: list[int], is_load: bool) -> Any:
        number = self.job(keys, chunks, is_load)
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        assert result.job_id == number
        return result

    def store(self, keys: list[bytes], chunks: list[int]) -> Any:
        return self.run(keys, chunks, False)

    def load(self, keys: list[bytes], chunks: list[int]) -> Any:
        return self.run(keys, chunks, True)

    def step(self) -> None:
        self.tier.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))

    def lookup(self, keys: list[bytes], context: ReqContext = CONTEXT) -> list[LookupResult]:
        first = [self.tier.lookup(key, context) for key in keys]
        self.step()
        deadline = time.monotonic() + 20
        while LookupResult.RETRY in (found := [self.tier.lookup(key, context) for key in keys]):
            assert time.monotonic() < deadline, "a lookup has not ended"
            select.select([self.tier._completions.fileno()], [], [], 1)
        assert all(one in (LookupResult.RETRY, other) for one, other in zip(first, found))
        return found

    def close(self) -> None:
        self.tier.shutdown()


def key(number: int) -> Any:
    return make_offload_key(number.to_bytes(32, "big"), 0)


@pytest.fixture
def tier(keys: Target, request: pytest.FixtureRequest) -> Any:
    made = Tier(keys.address(1), f"{request.node.name}/")
    yield made
    made.close()


def test_nothing_is_in_an_empty_tier(tier: Tier) -> None:
    assert tier.lookup([key(1), key(2)]) == [LookupResult.MISS] * 2


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_chunks_are_stored_and_loaded_into_other_chunks(tier: Tier, count: int) -> None:
    tier.fill()
    names = [key(number) for number in range(count)]
    wanted = tier.memory[:count].copy()
    stored = tier.store(names, list(range(count)))
    assert stored.success and stored.transfer_bytes == count * CHUNK_BYTES
    assert tier.lookup(names) == [LookupResult.HIT] * count
    tier.memory[...] = 0
    assert tier.load(names, list(range(CHUNKS - count, CHUNKS))).success
    assert (tier.memory[CHUNKS - count :] == wanted).all()
    assert not tier.memory[: CHUNKS - count].any()
    assert tier.lookup(names) == [LookupResult.HIT] * count


def test_jobs_are_independent(tier: Tier) -> None:
    tier.fill()
    wanted = [tier.job([key(number)], [number], False) for number in range(4)]
    tier.tier.drain_jobs()
    results = list(tier.tier.get_finished_jobs())
    assert sorted(result.job_id for result in results) == wanted and all(result.success for result in results)
    assert list(tier.tier.get_finished_jobs()) == []
    assert tier.lookup([key(number) for number in range(5)]) == [LookupResult.HIT] * 4 + [LookupResult.MISS]


def test_a_load_that_lacks_a_chunk_names_the_others(tier: Tier) -> None:
    assert tier.store([key(10), key(11)], [0, 1]).success
    failed = tier.load([key(10), key(99), key(11)], [2, 3, 4])
    assert not failed.success and set(failed.successful_keys) == {key(10), key(11)}
    nothing = tier.load([key(99)], [0])
    assert not nothing.success and nothing.successful_keys is None


def test_chunks_outside_the_memory_fail_their_job(tier: Tier, caplog: pytest.LogCaptureFixture) -> None:
    for chunk in (CHUNKS, -1):
        assert not tier.store([key(1)], [chunk]).success
        assert not tier.load([key(1)], [chunk]).success
    assert "chunk_ids: -1 is none of the 8 chunks" in caplog.text


def test_a_failed_load_is_a_miss_and_is_not_begun_again(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        tier = Tier(client, "failed-load/")
        names = [key(1), key(2), key(3)]
        assert tier.store(names, [0, 1, 2]).success
        context = ReqContext(req_id="first")
        assert tier.lookup(names, context) == [LookupResult.HIT] * 3
        assert tier.load(names, [0, 1, 2]).success
        client.set_many([tier.tier._start + names[2]], [b"damaged"])
        failed = tier.load(names, [0, 1, 2])
        assert not failed.success and tuple(failed.successful_keys) == (names[0], names[1])
        # The same request asks nothing again; another one finds what is left.
        hits = [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS]
        assert [tier.tier.lookup(name, context) for name in names] == hits
        tier.tier.on_request_finished(context)
        assert tier.lookup(names, ReqContext(req_id="second")) == hits
        assert tier.store(names, [0, 1, 2]).success
        assert tier.lookup(names, ReqContext(req_id="third")) == hits
        tier.tier.on_request_finished(ReqContext(req_id="second"))
        tier.tier.on_request_finished(ReqContext(req_id="third"))
        assert tier.lookup(names, ReqContext(req_id="fourth")) == [LookupResult.HIT] * 3
        tier.close()
        tier.close()
        assert not client.closed


def test_a_failed_load_does_not_answer_a_newer_lookup(tier: Tier) -> None:
    assert tier.store([key(1)], [0]).success
    first, second = ReqContext(req_id="A"), ReqContext(req_id="B")
    assert tier.lookup([key(1)], first) == [LookupResult.HIT]
    tier.tier._loads.delete_many([tier.tier._start + key(1)])
    tier.job([key(1)], [1], True)
    tier.tier.on_request_finished(first)
    assert tier.tier.lookup(key(1), second) == LookupResult.RETRY
    assert tier.lookup([key(1)], second) == [LookupResult.MISS]
    tier.tier.drain_jobs()
    assert [result.success for result in tier.tier.get_finished_jobs()] == [False]
    assert tier.tier.lookup(key(1), second) == LookupResult.MISS


def test_lookups_are_forgotten_with_their_requests(tier: Tier) -> None:
    first, second = ReqContext(req_id="A"), ReqContext(req_id="B")
    assert tier.tier.lookup(key(1), first) == LookupResult.RETRY
    tier.tier.on_request_finished(first)
    # Asked for again before the step ends, then kept while its answer is under way.
    assert tier.tier.lookup(key(1), second) == LookupResult.RETRY
    tier.step()
    tier.tier.on_request_finished(second)
    assert tier.lookup([key(1)], first) == [LookupResult.MISS]
    tier.tier.on_request_finished(first)
    assert not tier.tier._lookups and not tier.tier._keys_of
    tier.tier.on_request_finished(ReqContext(req_id="unknown"))


def test_chunks_that_were_found_are_kept_until_their_requests_end() -> None:
    target = Target("kv:ram:32M")
    tier = Tier(target.address(1), "pinned/", lease=60)
    other = nvlane.KeyValue(target.address(1))
    chunks = [key(number) for number in range(CHUNKS)]
    tier.fill()
    assert tier.store(chunks, list(range(CHUNKS))).success
    wanted = tier.memory.copy()
    assert tier.lookup(chunks) == [LookupResult.HIT] * CHUNKS

    def fill(round: str) -> None:
        for number in range(80):
            assert other.set_many([f"{round}-{number}"], [bytes(1 << 20)]) == [True]

    fill("first")
    tier.memory[...] = 0
    assert tier.load(chunks, list(range(CHUNKS))).success
    assert (tier.memory == wanted).all()
    tier.tier.on_request_finished(CONTEXT)
    # Behind the pins that are taken back on the same connection.
    again = ReqContext(req_id="again")
    tier.lookup([key(100)], again)
    fill("second")
    assert LookupResult.MISS in tier.lookup(chunks, again)
    other.close()
    tier.close()
    target.stop()


def test_what_differs_is_never_shared(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        tier = Tier(client, "differs/")
        assert tier.store([key(1)], [0]).success
        others = [
            Tier(client, "differs/", model="other-model"),
            Tier(client, "differs/", rank=1, tp_size=2),
            Tier(client, "differs/", tp_size=2),
            Tier(client, "differs/", chunk_bytes=CHUNK_BYTES // 2),
            Tier(client, "differs-too/"),
        ]
        assert [other.lookup([key(1)]) for other in others] == [[LookupResult.MISS]] * 5
        same = Tier(client, "differs/")
        assert same.lookup([key(1)]) == [LookupResult.HIT]
        for one in [tier, same, *others]:
            one.close()


@pytest.mark.parametrize("locality", [None, "LOCAL", "REMOTE"])
def test_stored_chunks_are_events(keys: Target, locality: str | None) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        tier = Tier(client, f"events-{locality}/", enable_kv_events=True, events=True, locality=locality)
        names = [key(1), key(2)]
        assert tier.store(names, [0, 1]).success
        (event,) = tier.tier.take_events()
        assert event.keys == names and event.medium == Medium.STORAGE and not event.removed
        assert event.locality == (None if locality is None else Locality(locality))
        assert tier.load(names, [0, 1]).success
        assert list(tier.tier.take_events()) == []
        tier.close()


def test_events_need_both_options(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        for options in ({"enable_kv_events": True}, {"events": True}):
            tier = Tier(client, "no-events/", **options)
            assert tier.store([key(1)], [0]).success
            assert list(tier.tier.take_events()) == []
            tier.close()


def test_a_lost_target_costs_misses_and_is_used_again() -> None:
    target = Target("kv:ram:64M")
    tier = Tier(target.address(1), "", options={"lanes": 2, "timeout": 5.0})
    assert tier.store([key(1)], [0]).success
    target.kill()
    start = time.monotonic()
    assert tier.lookup([key(1)]) == [LookupResult.MISS]
    assert not tier.load([key(1)], [1]).success
    assert not tier.store([key(2)], [0]).success
    assert time.monotonic() - start < 40
    target.start()
    deadline = time.monotonic() + 30
    while not tier.store([key(1)], [0]).success:
        assert time.monotonic() < deadline, "the target is back"
        time.sleep(0.1)
    tier.tier.on_request_finished(CONTEXT)
    while tier.lookup([key(1)]) != [LookupResult.HIT]:
        assert time.monotonic() < deadline, "the target is back"
        tier.tier.on_request_finished(CONTEXT)
        time.sleep(0.1)
    tier.close()
    target.kill()


def test_a_shutdown_ends_what_is_under_way(tier: Tier) -> None:
    tier.fill()
    for number in range(10):
        tier.job([key(number)], [number % CHUNKS], False)
    tier.tier.lookup(key(1), CONTEXT)
    tier.step()
    tier.close()
    tier.view.release()
    del tier.memory
    tier.map.close()


def test_invalid_arguments_say_which_and_why(keys: Target) -> None:
    for options, kind, words in [
        ({"options": {"lane": 1}}, TypeError, "no argument lane"),
        ({"prefix": "p" * 65}, ValueError, "65 bytes"),
        ({"address": "nowhere"}, ValueError, "names no subsystem"),
        ({"locality": "local"}, ValueError, "Locality"),
    ]:
        arguments = {"address": keys.address(1), "prefix": "", **options}
        with pytest.raises(kind, match=words):
            Tier(**arguments)
