"""A storage for SGLang's hierarchical cache: pages of its host pool, each one value on an NVMe/TCP target.

    --enable-hierarchical-cache --hicache-mem-layout page_first --page-size 64 --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "nvlane", "module_path": "nvlane.sglang",
        "class_name": "HiCacheNvlane", "interface_v1": 1,
        "nvlane": {"address": "192.0.2.1:4420/nqn.2026-01.com.example:cache", "lanes": 4}}'

`nvlane` has the address of a key-value namespace, `prefix` (of all keys, for several caches in one namespace), `ttl` (seconds for
which a page is kept; 0: until the target evicts it) and the options of nvlane.KeyValue. With `interface_v1` pages move between the
network and the host pool without a copy in Python. Hybrid models have further pools (states, indexes, a draft model), whose pages
move with those of their keys and values in one batch.

Keys contain the model, the place of this rank, and the data type, layout and size of the pages of each pool, so that servers which
do not agree in all of these never read each other's pages. A lost target costs misses, within `fast_io_fail` (1 s) and `timeout` (10 s);
with a list of addresses within `deadline` (1 s).
SGLang is imported when HiCacheNvlane is first used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from . import Error, KeyValue
from ._engines import checked_prefix, connect, identity, leading, memory_at, with_base

__all__ = ["HiCacheNvlane"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# SGLang's name of the pool that every model has.
KEYS_AND_VALUES = "kv"


@dataclass(frozen=True)
class _Pool:
    """A host pool, what tells its pages from those of others, and what precedes their keys."""

    host: Any
    identity: str
    start: str


class _HiCacheNvlane:
    """SGLang's HiCacheStorage on an NVMe/TCP target. Its methods are called by the threads that prefetch and back up, and wait
    without the interpreter's lock; loads do not wait for stores."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """Connects.

        storage_config: SGLang's HiCacheStorageConfig, whose extra_config has an object "nvlane".
        """
        extra = storage_config.extra_config or {}
        own = extra.get("nvlane")
        if not isinstance(own, dict) or "address" not in own:
            raise ValueError('extra config: "nvlane" has to be an object with "address": HOST[:PORT]/NQN[?ns=NSID]')
        options: Any = dict(own)
        address = options.pop("address")
        self._prefix = checked_prefix(options.pop("prefix", ""))
        self._ttl = int(options.pop("ttl", 0))
        self._config = storage_config
        # Flat pages and those of interface_v1 may have their bytes in another order.
        self._is_flat = not extra.get("interface_v1")
        self._loads: KeyValue = connect(address, options)
        self._owns = self._loads is not address
        self._stores = connect(address, options) if self._owns else address
        self._is_failing = False
        self._counts = {"pages_loaded": 0, "pages_missed": 0, "pages_stored": 0, "pages_present": 0, "errors": 0}
        self.mem_pool_host: Any = None
        self._pools: dict[str, _Pool] = {}

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the host pool whose pages are to be moved."""
        self.mem_pool_host = mem_pool_host
        self._pools[KEYS_AND_VALUES] = self._pool(KEYS_AND_VALUES, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a further host pool: the states of a hybrid model, the index of a sparse attention, a draft model's pages."""
        name = _text(host_pool_name)
        self._pools[name] = self._pool(name, host_pool)

    # Pages of the host pool, by indices of their tokens.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fills pages of the host pool. Returns for each whether it was stored, with the size of a page."""
        return self._load(self._names(keys), self._buffers(keys, host_indices))

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool, unless they are stored already. Returns for each whether it is stored now."""
        return self._store(self._names(keys), self._buffers(keys, host_indices))

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many of the first keys are stored, up to one that is not. Asks for all in one round trip."""
        return leading(self._found(self._names(keys)))

    # Pages of several host pools, in one batch.

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Fills pages of each pool. Returns for each page of a pool whether it was stored, with the size of a page."""
        return self._transfer(transfers, self._load)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores pages of each pool, unless they are stored already. Returns for each page whether it is stored now."""
        return self._transfer(transfers, self._store)

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """How many of the first pages are usable: their keys and values are stored, and the pages of every pool that its policy
        asks for. Asks for all in one round trip. Returns SGLang's PoolTransferResult."""
        from sglang.srt.mem_cache.hicache_storage import PoolTransferResult  # type: ignore[import-not-found]

        transfers = list(pool_transfers or [])
        pools = [KEYS_AND_VALUES, *(_text(transfer.name) for transfer in transfers)]
        found = self._found([name for pool in pools for name in self._names(keys, pool)])
        rows = [found[index * len(keys) : (index + 1) * len(keys)] for index in range(len(pools))]
        pages = leading(rows[0])
        hits: dict[Any, int] = {KEYS_AND_VALUES: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer, row in zip(transfers, rows[1:]):
            lengths = _usable(transfer, row[:pages])
            if lengths:
                hits[transfer.name] = max(lengths)
            usable = [length for length in usable if length in lengths]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    # Tensors in host memory, or addresses with sizes.

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._found(self._names([key])) == [True]

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The tensor filled with a page (True for an address), or None. Without a tensor: a new one of bytes."""
        return self.batch_get([key], [target_location], [target_sizes])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """For each key the tensor filled with its page (True for an address), or None."""
        if target_locations is None or any(location is None for location in target_locations):
            return [self._new_tensor(key) for key in keys]
        sizes = _each(target_sizes, len(keys))
        buffers = [[_memory(location, size, True)[0]] for location, size in zip(target_locations, sizes)]
        found = self._load(self._names(keys), buffers)
        return [
            (True if isinstance(location, int) else location) if is_found else None
            for location, is_found in zip(target_locations, found)
        ]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a tensor, or the bytes at an address. Returns whether it is stored."""
        return self.batch_set([key], [value if value is not None else target_location], None, [target_sizes])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores tensors, or the bytes at addresses. Returns whether all are stored."""
        pages = values if values is not None else target_locations
        memories = [_memory(page, size, False) for page, size in zip(pages, _each(target_sizes, len(keys)))]
        return all(self._store(self._names(keys), [[memory] for memory, _ in memories]))

    # The storage as a whole.

    def clear(self) -> None:
        """Makes all pages of this cache misses, for every server that begins to use it from now on. Their memory is freed
        when the target evicts them."""
        for name, pool in list(self._pools.items()):
            self._stores.set(self._epoch_key(pool.identity), os.urandom(8))
            self._pools[name] = self._pool(name, pool.host)

    @property
    def counts(self) -> dict[str, int]:
        """Pages loaded, missed, stored and found already stored, and calls that failed."""
        return dict(self._counts)

    def close(self) -> None:
        """Ends the connections, unless they were given. Closing again does nothing."""
        if self._owns:
            self._loads.close()
            self._stores.close()

    # How it works.

    def _pool(self, name: str, pool: Any) -> _Pool:
        """A pool, with what precedes the keys of its pages: for this model, rank and form of pages, since the cache was cleared."""
        config = self._config
        is_shared = config.is_mla_model and not _is_split(name, pool)
        own = identity(
            engine="sglang",
            model=config.model_name,
            # Ranks that have the same pages share them, and one of them stores them.
            tp=None if is_shared else (config.tp_rank, config.tp_size),
            pp=(config.pp_rank, config.pp_size),
            cp=(config.attn_cp_rank, config.attn_cp_size),
            dcp=(getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)),
            layout=getattr(pool, "layout", None),
            dtype=getattr(pool, "dtype", None),
            page_size=getattr(pool, "page_size", 1),
            token_bytes=getattr(pool, "size_per_token", None),
            is_flat=self._is_flat,
            pool=name,
        )
        # Random, so that pages stay misses if it was lost.
        self._stores.set(self._epoch_key(own), os.urandom(8), if_absent=True)
        epoch = self._stores.get(self._epoch_key(own)) or os.urandom(8)
        return _Pool(pool, own, f"{self._prefix}sglang/{own}/{epoch.hex()}/")

    def _epoch_key(self, identity: str) -> str:
        return f"{self._prefix}sglang/{identity}/epoch"

    def _names(self, keys: Sequence[str], pool: str = "kv") -> list[str]:
        if pool not in self._pools:
            method = "register_mem_pool_host" if pool == KEYS_AND_VALUES else "register_mem_host_pool_v2"
            raise RuntimeError(f"no host pool {pool!r} yet: call {method} first")
        return [self._pools[pool].start + key for key in keys]

    def _buffers(self, keys: Sequence[str], host_indices: Any, pool: str = "kv") -> list[list[Any]]:
        """The memory of each page, in one piece or several."""
        host = self._pools[pool].host if pool in self._pools else None
        page_size = getattr(host, "page_size", 1) or 1
        count = 0 if host_indices is None else len(host_indices)
        if count != len(keys) * page_size:
            raise ValueError(f"host_indices has {count} tokens: {len(keys)} pages have {len(keys) * page_size}")
        if not keys or host is None:
            return []
        addresses, sizes = host.get_page_buffer_meta(host_indices)
        sizes = _each(sizes, len(addresses))
        each = len(addresses) // len(keys)
        pieces = [memory_at(int(address), int(size)) for address, size in zip(addresses, sizes)]
        return [pieces[index * each : (index + 1) * each] for index in range(len(keys))]

    def _transfer(self, transfers: Sequence[Any], move: Callable[..., list[bool]]) -> dict[Any, list[bool]]:
        """Moves the pages of all pools in one batch."""
        names: list[str] = []
        buffers: list[list[Any]] = []
        ends: dict[Any, tuple[int, int]] = {}
        for transfer in transfers:
            keys, pool = transfer.keys or [], _text(transfer.name)
            start = len(names)
            names += self._names(keys, pool)
            buffers += self._buffers(keys, transfer.host_indices, pool)
            ends[transfer.name] = (start, len(names))
        moved = move(names, buffers)
        return {name: moved[start:end] for name, (start, end) in ends.items()}

    def _run(self, method: Callable[..., list[T]], *arguments: Any, **keywords: Any) -> list[T] | None:
        """The result of a method of the client, or None if it failed: what a cache does not get is a miss."""
        try:
            result = method(*arguments, **keywords)
        except Error as error:
            self._counts["errors"] += 1
            if not self._is_failing:
                logger.warning("%s: %s; pages are misses until it works again", self._loads.address, error)
            self._is_failing = True
            return None
        if self._is_failing:
            logger.warning("%s: works again", self._loads.address)
        self._is_failing = False
        return result

    def _load(self, names: list[str], buffers: list[list[Any]]) -> list[bool]:
        found = self._run(self._loads.get_many_into, names, buffers)
        if found is None:
            return [False] * len(names)
        self._counts["pages_loaded"] += found.count(True)
        self._counts["pages_missed"] += len(found) - found.count(True)
        unusable = [name for name, is_found in zip(names, found) if is_found is False]
        if unusable:
            # They would be asked for again and again, and not be replaced.
            self._run(self._delete, unusable)
        return [is_found is True for is_found in found]

    def _delete(self, names: list[str]) -> list[bool]:
        self._loads.delete_many(names)
        return []

    def _store(self, names: list[str], buffers: list[list[Any]]) -> list[bool]:
        # The name of a page depends on its contents: one that exists is the same, and none of it is sent.
        stored = self._run(self._stores.set_many, names, buffers, if_absent=self._ttl == 0, ttl=self._ttl)
        if stored is None:
            return [False] * len(names)
        self._counts["pages_stored"] += sum(stored)
        self._counts["pages_present"] += len(stored) - sum(stored)
        return [True] * len(names)

    def _found(self, names: list[str]) -> list[bool]:
        return self._run(self._loads.exists_many, names) or [False] * len(names)

    def _new_tensor(self, key: str) -> Any:
        import torch  # type: ignore[import-not-found]

        try:
            value = self._loads.get(self._names([key])[0])
        except Error as error:
            logger.warning("%s: %s", self._loads.address, error)
            return None
        return None if value is None else torch.frombuffer(bytearray(value), dtype=torch.uint8)


def _text(name: Any) -> str:
    """A pool's name, of SGLang's PoolName or as text."""
    return str(getattr(name, "value", name))


def _is_split(name: str, pool: Any) -> bool:
    """Whether the ranks of a model with MLA have different pages in this pool: states of Mamba, and a draft model without MLA."""
    kinds = {kind.__name__ for kind in type(pool).__mro__}
    is_draft_without = name.startswith("draft") and not kinds & {"MLATokenToKVPoolHost", "DeepSeekV4PagedHostPool"}
    return name == "mamba" or (is_draft_without and name != "draft_indexer")


def _usable(transfer: Any, found: list[bool]) -> set[int]:
    """The numbers of first pages that a pool can serve."""
    policy = _text(transfer.hit_policy)
    if policy == "all_pages":
        return set(range(1, leading(found) + 1))
    if policy == "trailing_pages":
        window = max(1, len(transfer.keys or []))
        ends = range(1, len(found) + 1)
        return {end for end in ends if all(found[max(0, end - window) : end])}
    raise ValueError(f"pool {_text(transfer.name)}: hit policy {policy!r} is not known; there are all_pages and trailing_pages")


def _each(sizes: Any, count: int) -> list[Any]:
    return list(sizes) if isinstance(sizes, (list, tuple)) else [sizes] * count


def _memory(location: Any, size: Any, is_filled: bool) -> tuple[Any, Any]:
    """The memory of a tensor or at an address, and what keeps it in place."""
    if isinstance(location, int):
        if not isinstance(size, int):
            raise TypeError(f"target_sizes: an address needs a number of bytes, not {size!r}")
        return memory_at(location, size), None
    if location.device.type != "cpu":
        raise ValueError(f"a page on {location.device}: pages have to be in host memory")
    if not location.is_contiguous():
        if is_filled:
            raise ValueError("target_locations: a tensor is not contiguous")
        location = location.contiguous()
    return memory_at(location.data_ptr(), location.numel() * location.element_size()), location


if TYPE_CHECKING:

    class HiCacheNvlane(_HiCacheNvlane): ...

else:

    def __getattr__(name: str) -> Any:
        if name != "HiCacheNvlane":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        made = with_base(_HiCacheNvlane, "sglang.srt.mem_cache.hicache_storage", "HiCacheStorage")
        globals()[name] = made
        return made
