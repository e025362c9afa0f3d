"""Storages for LMCache: keys and values of a cache of language-model states on an NVMe/TCP target.

As a native plugin of LMCache's server process (`Client`):

    --l2-adapter '{"type": "native_plugin", "module_path": "nvlane.lmcache", "class_name": "Client",
                   "adapter_params": {"address": "192.0.2.1:4420/nqn.2026-01.com.example:cache", "lanes": 4},
                   "max_capacity_gb": 0}'

As a remote storage of LMCache within an engine (`Connector`); what follows the plugin's name are arguments of `Client`:

    remote_storage_plugins: ["nvlane"]
    extra_config:
      remote_storage_plugin.nvlane.module_path: nvlane.lmcache
      remote_storage_plugin.nvlane.class_name: Connector
      remote_storage_plugin.nvlane.address: 192.0.2.1:4420/nqn.2026-01.com.example:cache
      remote_storage_plugin.nvlane.lanes: 4

Keys have up to 250 bytes; a longer one is a miss and is not stored. A lost target costs misses: each operation ends within
`fast_io_fail` and `timeout` seconds, and the target is used again as soon as it is back. With several addresses (a list) keys are
spread over the targets, and others take the place of a lost one after `deadline` seconds. LMCache is imported when Connector is
first used.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from . import Completions, Error, KeyValue, aio
from ._engines import connect, leading, with_base

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._nvlane import Options, SpreadOptions

__all__ = ["Client", "Connector"]

logger = logging.getLogger(__name__)

KEY_BYTES_MAX = 250


class Client:
    """The seven methods that LMCache calls. Submissions come from several threads, completions are drained by one."""

    @overload
    def __init__(
        self, address: str, prefix: str = "", ttl: int = 0, lease: int = 0, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self, address: Sequence[str], prefix: str = "", ttl: int = 0, lease: int = 0, **options: Unpack[SpreadOptions]
    ) -> None: ...
    def __init__(
        self, address: str | Sequence[str], prefix: str = "", ttl: int = 0, lease: int = 0, **options: Any
    ) -> None:
        """Connects.

        address: HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace, or a list of several.
        prefix: precedes every key, so that several caches share a namespace.
        ttl: seconds for which a value is kept; 0 for ever, or until the target evicts it.
        lease: seconds for which values that were asked for are not evicted, as far as half of the target's memory allows; 0: they
            may be.
        options: those of nvlane.KeyValue; by default 4 lanes, and 10 seconds for each command. Commands end 1 second after a target
            is lost.
        """
        chosen: Any = options
        self._client = connect(address, chosen)
        self._completions = Completions()
        self._prefix, self._ttl, self._lease = prefix, ttl, lease
        # By number of the operation: indices of the keys that were sent, number of all keys, whether it stores.
        self._asked: dict[int, tuple[list[int], int, bool]] = {}
        self._lock = threading.Lock()

    def event_fd(self) -> int:
        """A descriptor that is readable when completions wait."""
        return self._completions.fileno()

    def submit_batch_set(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Stores values, each as a whole or not at all."""
        names, at = self._names(keys)
        chosen = _chosen(keys, values, "values", at)
        return self._submit(at, len(keys), True, self._client.set_many, names, chosen, ttl=self._ttl)

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        """Fills buffers; a value of another length is a miss."""
        names, at = self._names(keys)
        chosen = _chosen(keys, buffers, "buffers", at)
        return self._submit(at, len(keys), False, self._client.get_many_into, names, chosen)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Asks for all keys in one round trip for each 1,000; none is marked as used. With `lease` those that exist are pinned."""
        names, at = self._names(keys)
        return self._submit(at, len(keys), False, self._client.exists_many, names, lease=self._lease)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Deletes keys."""
        names, at = self._names(keys)
        return self._submit(at, len(keys), False, self._client.delete_many, names)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """All operations that have ended: number, success, error, and for each key whether it was found."""
        drained: list[tuple[int, bool, str, list[bool] | None]] = []
        for number, result, error in self._completions.drain():
            with self._lock:
                at, count, is_set = self._asked.pop(number)
            if error is not None:
                drained.append((number, False, str(error), None))
            elif is_set:
                stored = all(result)
                drained.append((number, stored, "" if stored else "no target for some of the values", None))
            else:
                found = [False] * count
                # A deletion has no results: every key is gone.
                for index, value in zip(at, result if result is not None else [True] * len(at)):
                    found[index] = bool(value)
                drained.append((number, True, "", found))
        return drained

    def close(self) -> None:
        """Ends the connections. Closing again does nothing."""
        self._completions.close()
        self._client.close()

    def _names(self, keys: Sequence[str]) -> tuple[list[bytes], list[int]]:
        return _names(self._prefix, keys)

    def _submit(self, at: list[int], count: int, is_set: bool, method: Any, *arguments: Any, **keywords: Any) -> int:
        # Under the lock: the drain finds what belongs to the number.
        with self._lock:
            number: int = method(*arguments, completions=self._completions, **keywords)
            self._asked[number] = (at, count, is_set)
        return number


class _RemoteConnector:
    """LMCache's RemoteConnector. A value has LMCache's description of the chunk (its shapes and types) in front of the chunk's
    bytes. Coroutines run in LMCache's event loop, the other methods wait."""

    meta_shapes: Any
    meta_dtypes: Any
    meta_fmt: Any
    remote_metadata_bytes: int

    def __init__(
        self, context: Any, address: str | Sequence[str], prefix: str, ttl: int, lease: int, options: Any
    ) -> None:
        super().__init__(context.config, context.metadata)  # type: ignore[call-arg]
        self._client = connect(address, options)
        self._prefix, self._ttl, self._lease = prefix, ttl, lease
        self._memory = context.local_cpu_backend
        # Made in the event loop, by the first coroutine.
        self._in_loop: aio.KeyValue | None = None

    async def exists(self, key: Any) -> bool:
        """Whether a chunk is stored."""
        return (await self._found([key])) == [True]

    def exists_sync(self, key: Any) -> bool:
        """Whether a chunk is stored."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many of the first chunks are stored. Asks for all in one round trip."""
        names, at = self._names(keys)
        found = self._client.exists_many(names)
        return leading(_at(found, at, len(keys)))

    def support_batched_async_contains(self) -> bool:
        return True

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        """How many of the first chunks are stored. Asks for all in one round trip; none is marked as used. With `pin` and a
        `lease` they are pinned for as long."""
        return leading(await self._found(keys, self._lease if pin else 0))

    async def get(self, key: Any) -> Any:
        """The chunk in memory of LMCache, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[Any]) -> list[Any]:
        """The chunks in memory of LMCache, each None if it is not stored or there is no memory for it."""
        loading = asyncio.ensure_future(self._load(keys))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            # The network fills the memory of the chunks until the load has ended.
            loading.add_done_callback(_release_loaded)
            raise

    def support_batched_get_non_blocking(self) -> bool:
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """The first chunks, up to one that is not stored."""
        chunks = await self.batched_get(keys)
        count = leading([chunk is not None for chunk in chunks])
        _release(chunks[count:])
        return chunks[:count]

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Stores a chunk, as a whole or not at all."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Stores chunks, each as a whole or not at all."""
        # They are sent until the store has ended, also if the caller is cancelled.
        for memory_obj in memory_objs:
            memory_obj.ref_count_up()
        storing = asyncio.ensure_future(self._store(keys, memory_objs))
        storing.add_done_callback(lambda _: _release(memory_objs))
        await asyncio.shield(storing)

    def remove_sync(self, key: Any) -> bool:
        """Deletes a chunk."""
        self._client.delete_many(self._names([key])[0])
        return True

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0 if the target answers."""
        try:
            await self._loop_client().exists_many([b"ping"])
        except Error as error:
            logger.warning("%s: %s", self._client.address, error)
            return 1
        return 0

    async def close(self) -> None:
        """Ends the connections. Closing again does nothing."""
        if self._in_loop is not None:
            await self._in_loop.close()
        else:
            self._client.close()

    def _loop_client(self) -> aio.KeyValue:
        if self._in_loop is None:
            self._in_loop = aio.KeyValue(self._client)
        return self._in_loop

    def _names(self, keys: Sequence[Any]) -> tuple[list[bytes], list[int]]:
        return _names(self._prefix, [key.to_string() for key in keys])

    async def _found(self, keys: Sequence[Any], lease: int = 0) -> list[bool]:
        names, at = self._names(keys)
        return _at(await self._loop_client().exists_many(names, lease=lease), at, len(keys))

    async def _load(self, keys: Sequence[Any]) -> list[Any]:
        from lmcache.v1.protocol import RemoteMetadata  # type: ignore[import-not-found]

        names, at = self._names(keys)
        # Most chunks are whole: their memory is there before their description is.
        chunks = [self._memory.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt) for _ in names]
        count = leading([chunk is not None for chunk in chunks])
        _release(chunks[count:])
        names, at, chunks = names[:count], at[:count], chunks[:count]
        heads = [bytearray(self.remote_metadata_bytes) for _ in names]
        try:
            pieces: list[list[Any]] = [[head, memoryview(chunk.byte_array)] for head, chunk in zip(heads, chunks)]
            found = await self._loop_client().get_many_into(names, pieces)
            for index, is_found in enumerate(found):
                is_whole = False
                if is_found:
                    described = RemoteMetadata.deserialize(heads[index])
                    is_whole = (described.shapes, described.dtypes) == (self.meta_shapes, self.meta_dtypes)
                if not is_whole:
                    _release([chunks[index]])
                    chunks[index] = None
                    if is_found is not None:
                        chunks[index] = await self._load_other(names[index])
        except BaseException:
            _release(chunks)
            raise
        return _at(chunks, at, len(keys), None)

    async def _load_other(self, name: bytes) -> Any:
        """A chunk of another shape or type, such as the last one of a prompt, by a copy."""
        from lmcache.v1.protocol import RemoteMetadata

        value = (await self._loop_client().get_many([name]))[0]
        if value is None:
            return None
        body = memoryview(value)[self.remote_metadata_bytes :]
        try:
            described = RemoteMetadata.deserialize(value)
        except Exception as error:
            return await self._delete_damaged(name, str(error))
        if described.length != len(body):
            return await self._delete_damaged(name, f"{len(body)} bytes: {described.length} are described")
        chunk = self._memory.allocate(described.shapes, described.dtypes, described.fmt)
        if chunk is not None:
            memoryview(chunk.byte_array)[:] = body
        return chunk

    async def _delete_damaged(self, name: bytes, why: str) -> None:
        # It would be asked for again and again, and not be replaced.
        logger.warning("%s: the value of %r is deleted: %s", self._client.address, name, why)
        await self._loop_client().delete_many([name])

    async def _store(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        from lmcache.v1.protocol import RemoteMetadata

        names, at = self._names(keys)
        values = []
        for index in at:
            chunk = memory_objs[index]
            data = memoryview(chunk.byte_array)
            shapes, dtypes, form = chunk.get_shapes(), chunk.get_dtypes(), chunk.get_memory_format()
            values.append([RemoteMetadata(len(data), shapes, dtypes, form).serialize(), data])
        stored = await self._loop_client().set_many(names, values, ttl=self._ttl)
        if not all(stored):
            raise RuntimeError(f"{stored.count(False)} of {len(stored)} chunks have no target")

    async def list(self) -> list[str]:
        """Raises NotImplementedError: targets list keys of up to 16 bytes, and those of chunks are longer."""
        raise NotImplementedError("a target lists keys of up to 16 bytes, and those of chunks are longer")


def _names(prefix: str, keys: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """The keys that a target can have, and their places."""
    names = [(prefix + key).encode() for key in keys]
    at = [index for index, name in enumerate(names) if 1 <= len(name) <= KEY_BYTES_MAX]
    return [names[index] for index in at], at


def _chosen(keys: Sequence[str], values: Sequence[memoryview], name: str, at: list[int]) -> list[memoryview]:
    """The values at these places."""
    if len(values) != len(keys):
        raise ValueError(f"{len(keys)} keys and {len(values)} {name}: each key has one")
    return [values[index] for index in at]


def _at(values: Sequence[Any], at: Sequence[int], count: int, other: Any = False) -> list[Any]:
    """Values at their places, and another one elsewhere."""
    placed = [other] * count
    for index, value in zip(at, values):
        placed[index] = value
    return placed


def _release(chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        if chunk is not None:
            chunk.ref_count_down()


def _release_loaded(loading: asyncio.Future[list[Any]]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        _release(loading.result())


def _arguments(context: Any) -> dict[str, Any]:
    """What follows a plugin's name in LMCache's extra configuration."""
    plugin = context.plugin_name or "nvlane"
    start = f"remote_storage_plugin.{plugin}."
    extra = (context.config.extra_config if context.config is not None else None) or {}
    given = {key[len(start) :]: value for key, value in extra.items() if key.startswith(start)}
    given.pop("module_path", None)
    given.pop("class_name", None)
    if "address" not in given:
        raise ValueError(f"extra_config: {start}address has to be HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace")
    return given


class _Connector:
    """LMCache's ConnectorAdapter: makes the connection of a plugin that is called nvlane, or nvlane.INSTANCE."""

    def __init__(self) -> None:
        super().__init__("plugin://nvlane")  # type: ignore[call-arg]

    def create_connector(self, context: Any) -> Any:
        """Connects as the plugin's options say."""
        options = _arguments(context)
        made = with_base(_RemoteConnector, "lmcache.v1.storage_backend.connector.base_connector", "RemoteConnector")
        address, prefix = options.pop("address"), str(options.pop("prefix", ""))
        ttl, lease = int(options.pop("ttl", 0)), int(options.pop("lease", 0))
        return made(context, address, prefix, ttl, lease, options)


if TYPE_CHECKING:

    class Connector(_Connector): ...

else:

    def __getattr__(name: str) -> Any:
        if name != "Connector":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        made = with_base(_Connector, "lmcache.v1.storage_backend.connector", "ConnectorAdapter")
        globals()[name] = made
        return made
