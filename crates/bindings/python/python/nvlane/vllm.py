"""A secondary tier for vLLM's KV offloading: chunks of its CPU cache, each one value on an NVMe/TCP target.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
        "secondary_tiers": [{"type": "NvlaneTier", "module_path": "nvlane.vllm",
                             "address": "192.0.2.1:4420/nqn.2026-01.com.example:cache", "options": {"lanes": 4}}]}}'

All of its methods run in vLLM's scheduler and none of them waits, but `drain_jobs` and `shutdown`: there is no thread of Python.
Keys contain what vLLM's own file tier has in its paths (model, data type, groups of layers, parallelism) and the bytes of a chunk.
A lost target costs misses, within `fast_io_fail` (1 s) and `timeout` (10 s). vLLM is imported when NvlaneTier is first used.
"""

from __future__ import annotations

import importlib
import logging
import select
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import Completions, KeyValue
from ._engines import checked_prefix, connect, identity, with_base

if TYPE_CHECKING:
    from ._nvlane import Options

__all__ = ["NvlaneTier"]

logger = logging.getLogger(__name__)


class _Lookup:
    """What is known of a key, as long as a request asks for it."""

    __slots__ = ("is_asked", "is_there", "pinned_until", "requests")

    def __init__(self) -> None:
        self.is_there: bool | None = None
        self.is_asked = False
        # In time.monotonic(). Afterwards a pin taken back would be that of another host.
        self.pinned_until = 0.0
        self.requests: set[str] = set()


class _Job:
    """A transfer that is under way."""

    __slots__ = ("is_load", "keys", "start")

    def __init__(self, keys: list[bytes], is_load: bool) -> None:
        self.keys, self.is_load, self.start = keys, is_load, time.monotonic()


class _NvlaneTier:
    """vLLM's SecondaryTierManager on an NVMe/TCP target."""

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        address: str | KeyValue,
        prefix: str = "",
        ttl: int = 0,
        lease: int = 0,
        options: Options | None = None,
        enable_kv_events: bool = False,
        locality: str | None = "REMOTE",
        backpressure_detector: Any = None,
    ) -> None:
        """Connects.

        offloading_spec, primary_kv_view, tier_type, backpressure_detector: given by vLLM.
        address: HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace.
        prefix: precedes every key, so that several caches share a namespace.
        ttl: seconds for which a chunk is kept; 0 for ever, or until the target evicts it.
        lease: seconds for which a chunk that was found is not evicted before the requests that asked for it have ended; 0: it may be.
        options: those of nvlane.KeyValue; by default 4 lanes, commands that end 1 second after the target is lost, and 10
            seconds for each command.
        enable_kv_events, locality: as of vLLM's own tiers.
        """
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)  # type: ignore[call-arg]
        self._base = importlib.import_module("vllm.v1.kv_offload.base")
        self._tiering = importlib.import_module("vllm.v1.kv_offload.tiering.base")
        mapper = importlib.import_module("vllm.v1.kv_offload.file_mapper").FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        self.locality = self._base.Locality(locality) if locality is not None else None
        strides = primary_kv_view.strides
        self._chunk_bytes = strides[0] if strides else primary_kv_view.nbytes
        self._memory = primary_kv_view.cast("B")
        same = identity(engine="vllm", run=mapper.get_run_config(), rank=mapper.rank, chunk_bytes=self._chunk_bytes)
        self._start = f"{checked_prefix(prefix)}vllm/{same}/".encode()
        self._ttl, self._lease = ttl, lease
        events = offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[Any] | None = [] if enable_kv_events and events else None
        if enable_kv_events and not events:
            logger.warning("enable_kv_events of tier %s: vLLM's own KV cache events are disabled", tier_type)

        self._loads: KeyValue = connect(address, options or {})
        self._owns = self._loads is not address
        # Loads and lookups do not wait for stores.
        self._stores: KeyValue = connect(address, options or {}) if self._owns else self._loads
        self._completions = Completions()
        # Keyed by operation number. A list: the keys of a lookup; a job otherwise; None: the result is not used.
        self._under_way: dict[int, list[bytes] | tuple[int, _Job] | None] = {}
        self._lookups: dict[bytes, _Lookup] = {}
        self._keys_of: dict[str, set[bytes]] = {}
        self._to_ask: list[bytes] = []
        self._finished: list[Any] = []
        self._is_failing = self._is_closed = False

    # Lookups: collected during a step of the scheduler, and sent at its end.

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """HIT, MISS, or RETRY until the target has answered."""
        if self._under_way:
            self._drain()
        found = self._lookups.get(key)
        if found is None:
            found = self._lookups[key] = _Lookup()
            self._to_ask.append(key)
        found.requests.add(req_context.req_id)
        self._keys_of.setdefault(req_context.req_id, set()).add(key)
        result = self._base.LookupResult
        if found.is_there is None:
            return result.RETRY
        return result.HIT if found.is_there else result.MISS

    def on_schedule_end(self, context: Any) -> None:
        """Asks for the keys of this step: all in one round trip for each 1,000."""
        self._drain()
        keys = [key for key in dict.fromkeys(self._to_ask) if key in self._lookups and not self._lookups[key].is_asked]
        self._to_ask = []
        if not keys:
            return
        pinned_until = time.monotonic() + self._lease
        for key in keys:
            self._lookups[key].is_asked, self._lookups[key].pinned_until = True, pinned_until
        number = self._loads.exists_many(self._names(keys), lease=self._lease, completions=self._completions)
        self._under_way[number] = keys

    def on_new_request(self, req_context: Any) -> Any:
        """No preference of this tier."""
        return self._base.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what only this request asked for."""
        forgotten = []
        for key in self._keys_of.pop(req_context.req_id, ()):
            found = self._lookups[key]
            found.requests.discard(req_context.req_id)
            # An answer that is under way may serve the next request.
            if not found.requests and (found.is_there is not None or not found.is_asked):
                forgotten.append(key)
        self._forget(forgotten)

    # Transfers between the CPU cache and the target.

    def submit_store(self, job_metadata: Any) -> None:
        """Begins to store chunks, but those that are stored already."""
        self._submit(job_metadata, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Begins to load chunks."""
        self._submit(job_metadata, is_load=True)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The transfers that have ended since the last call."""
        self._drain()
        finished, self._finished = self._finished, []
        return finished

    def take_events(self) -> Iterable[Any]:
        """Events of stored chunks, if they are enabled."""
        events = self._events or []
        if self._events:
            self._events = []
        return events

    def drain_jobs(self) -> None:
        """Waits until no transfer is under way, some seconds at most: every operation has a limit."""
        poll = select.poll()
        poll.register(self._completions.fileno(), select.POLLIN)
        while any(isinstance(what, tuple) for what in self._under_way.values()):
            poll.poll(1000)
            self._drain()

    def shutdown(self) -> None:
        """Ends transfers and connections."""
        if self._is_closed:
            return
        self.drain_jobs()
        self._is_closed = True
        self._completions.close()
        self._under_way = {}
        self._memory.release()
        if self._owns:
            self._loads.close()
            self._stores.close()

    # How it works.

    def _names(self, keys: Iterable[bytes]) -> list[bytes]:
        return [self._start + key for key in keys]

    def _submit(self, job_metadata: Any, is_load: bool) -> None:
        job = _Job(list(job_metadata.keys), is_load)
        try:
            rows = [self._row(int(chunk)) for chunk in job_metadata.chunk_ids]
            names = self._names(job.keys)
            if is_load:
                number = self._loads.get_many_into(names, rows, completions=self._completions)
            else:
                # The name of a chunk depends on its contents: one that exists is the same, and none of it is sent.
                number = self._stores.set_many(
                    names, rows, if_absent=self._ttl == 0, ttl=self._ttl, completions=self._completions
                )
        except Exception:
            logger.exception("job %s", job_metadata.job_id)
            self._end(job_metadata.job_id, job, None)
            return
        self._under_way[number] = (job_metadata.job_id, job)

    def _row(self, chunk: int) -> memoryview:
        """The memory of a chunk."""
        count = len(self._memory) // self._chunk_bytes
        if not 0 <= chunk < count:
            raise ValueError(f"chunk_ids: {chunk} is none of the {count} chunks")
        return self._memory[chunk * self._chunk_bytes : (chunk + 1) * self._chunk_bytes]

    def _drain(self) -> None:
        """Takes in what has ended."""
        if self._is_closed:
            return
        for number, result, error in self._completions.drain():
            what = self._under_way.pop(number, None)
            self._note(error)
            if isinstance(what, tuple):
                self._end(*what, None if error is not None else result)
            elif what is not None:
                self._answer(what, result if error is None else [False] * len(what))

    def _answer(self, keys: list[bytes], found: list[bool]) -> None:
        forgotten = []
        for key, is_there in zip(keys, found):
            lookup = self._lookups.get(key)
            if lookup is None:
                continue
            lookup.is_there = is_there
            if not is_there:
                lookup.pinned_until = 0.0
            if not lookup.requests:
                forgotten.append(key)
        self._forget(forgotten)

    def _forget(self, keys: list[bytes]) -> None:
        """Forgets keys that no request asks for any more, and takes their pins back."""
        lookups, now = [(key, self._lookups.pop(key)) for key in keys], time.monotonic()
        pinned = [key for key, lookup in lookups if lookup.pinned_until > now]
        if pinned and not self._is_closed:
            number = self._loads.unpin_many(self._names(pinned), completions=self._completions)
            self._under_way[number] = None

    def _end(self, job_id: int, job: _Job, results: list[bool | None] | None) -> None:
        """Notes the end of a job. `results`: which chunks were loaded or stored; None if it failed."""
        loaded: list[bytes] = []
        success = results is not None
        if job.is_load:
            results = results or [False] * len(job.keys)
            loaded = [key for key, is_loaded in zip(job.keys, results) if is_loaded]
            missed = [key for key, is_loaded in zip(job.keys, results) if not is_loaded]
            for key in missed:
                # Otherwise the scheduler would begin the same load again.
                lookup = self._lookups.get(key)
                if lookup is not None and lookup.is_there is not None:
                    lookup.is_there = False
            unusable = [key for key, is_loaded in zip(job.keys, results) if is_loaded is False] if success else []
            if unusable:
                # They would be asked for again and again, and not be replaced.
                number = self._loads.delete_many(self._names(unusable), completions=self._completions)
                self._under_way[number] = None
            success = success and not missed
        elif success and job.keys and self._events is not None:
            self._events.append(
                self._base.OffloadingEvent(
                    keys=job.keys, medium=self._base.Medium.STORAGE, removed=False, locality=self.locality
                )
            )
        self._finished.append(
            self._tiering.JobResult(
                job_id=job_id,
                success=success,
                successful_keys=tuple(loaded) if loaded and not success else None,
                transfer_time=time.monotonic() - job.start,
                transfer_bytes=len(job.keys) * self._chunk_bytes,
            )
        )

    def _note(self, error: BaseException | None) -> None:
        """Logs that the target is lost, and that it is back."""
        if error is not None and not self._is_failing:
            logger.warning("%s: %s; chunks are misses until it works again", self._loads.address, error)
        elif error is None and self._is_failing:
            logger.warning("%s: works again", self._loads.address)
        self._is_failing = error is not None


if TYPE_CHECKING:

    class NvlaneTier(_NvlaneTier): ...

else:

    def __getattr__(name: str) -> Any:
        if name != "NvlaneTier":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        medium = importlib.import_module("vllm.v1.kv_offload.base").Medium.STORAGE
        made = with_base(
            _NvlaneTier, "vllm.v1.kv_offload.tiering.base", "SecondaryTierManager", medium=medium
        )
        globals()[name] = made
        return made
