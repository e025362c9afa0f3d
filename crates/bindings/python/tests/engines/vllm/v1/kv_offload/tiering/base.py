"""The interface of vLLM's secondary tiers."""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext, RequestOffloadingContext


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: Collection[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: ReqContext
    submit_time: float = dataclasses.field(default_factory=time.monotonic)


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Collection[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager(abc.ABC):
    medium: Medium | None = None

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
    ) -> None:
        self.tier_type = tier_type
        self.locality = None

    @abc.abstractmethod
    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult: ...

    @abc.abstractmethod
    def submit_store(self, job_metadata: TransferJob) -> None: ...

    @abc.abstractmethod
    def submit_load(self, job_metadata: TransferJob) -> None: ...

    @abc.abstractmethod
    def get_finished_jobs(self) -> Iterable[JobResult]: ...

    @abc.abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext: ...

    @abc.abstractmethod
    def drain_jobs(self) -> None: ...
