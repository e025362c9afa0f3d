"""What vLLM's offloading tiers exchange with its scheduler."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection
from typing import Any, NamedTuple

OffloadKey = bytes


def make_offload_key(block_hash: bytes, group_idx: int) -> bytes:
    return block_hash + group_idx.to_bytes(4, "big")


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class LookupResult(enum.Enum):
    MISS = enum.auto()
    HIT = enum.auto()
    HIT_PENDING = enum.auto()
    RETRY = enum.auto()


@dataclasses.dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: dict[str, Any] | None = None


@dataclasses.dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


class ScheduleEndContext(NamedTuple):
    new_req_ids: Collection[str]
    preempted_req_ids: Collection[str]


@dataclasses.dataclass
class OffloadingEvent:
    keys: list[bytes]
    medium: Medium
    removed: bool
    locality: Locality | None = None
