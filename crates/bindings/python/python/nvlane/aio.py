"""The classes of nvlane for asyncio: the same methods, as coroutines. An event descriptor wakes the event loop; there are no
threads of Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from . import _nvlane

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack

    from ._nvlane import Options, SpreadOptions

__all__ = ["Blocks", "KeyValue"]

_C = TypeVar("_C", _nvlane.Blocks, _nvlane.KeyValue)


class _Client(Generic[_C]):
    """A client, and the operations that coroutines of one event loop await."""

    def __init__(self, client: _C) -> None:
        self._client: _C = client
        self._completions = _nvlane.Completions()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._completions.fileno(), self._drain)

    def _drain(self) -> None:
        for number, result, error in self._completions.drain():
            waiting = self._waiting.pop(number, None)
            if waiting is None or waiting.done():
                continue
            if error is None:
                waiting.set_result(result)
            else:
                waiting.set_exception(error)

    async def _run(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this client belongs to another event loop: open one in each loop")
        number = method(*arguments, completions=self._completions, **keywords)
        waiting = self._waiting[number] = self._loop.create_future()
        try:
            return await waiting
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            self._completions.cancel(number)
            raise

    @property
    def address(self) -> str:
        """Address of the namespace."""
        return self._client.address

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._client.closed

    async def close(self) -> None:
        """Ends the connection. Outstanding operations are cancelled."""
        self._loop.remove_reader(self._completions.fileno())
        self._completions.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.cancel()
        await self._loop.run_in_executor(None, self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Blocks(_Client[_nvlane.Blocks]):
    """A block namespace; see nvlane.Blocks."""

    @classmethod
    async def open(cls, address: str, **options: Unpack[Options]) -> Self:
        """Connects. The arguments are those of nvlane.Blocks."""
        loop = asyncio.get_running_loop()
        return cls(await loop.run_in_executor(None, partial(_nvlane.Blocks, address, **options)))

    @property
    def size(self) -> int:
        """Bytes of the namespace."""
        return self._client.size

    @property
    def block_size(self) -> int:
        """Bytes of a block."""
        return self._client.block_size

    @property
    def readonly(self) -> bool:
        """Whether the target refuses writes."""
        return self._client.readonly

    async def read(self, offset: int, length: int) -> bytes:
        """See nvlane.Blocks.read."""
        return await self._run(self._client.read, offset, length)

    async def read_into(self, offset: int, buffer: Buffer) -> None:
        """See nvlane.Blocks.read_into."""
        await self._run(self._client.read_into, offset, buffer)

    async def write(self, offset: int, data: Buffer, *, durable: bool = False) -> None:
        """See nvlane.Blocks.write."""
        await self._run(self._client.write, offset, data, durable=durable)

    async def flush(self) -> None:
        """See nvlane.Blocks.flush."""
        await self._run(self._client.flush)

    async def discard(self, offset: int, length: int) -> None:
        """See nvlane.Blocks.discard."""
        await self._run(self._client.discard, offset, length)

    async def write_zeroes(self, offset: int, length: int, *, discard: bool = False) -> None:
        """See nvlane.Blocks.write_zeroes."""
        await self._run(self._client.write_zeroes, offset, length, discard=discard)

    async def compare(self, offset: int, data: Buffer) -> bool:
        """See nvlane.Blocks.compare."""
        return await self._run(self._client.compare, offset, data)

    async def compare_and_write(self, offset: int, expected: Buffer, new: Buffer) -> bool:
        """See nvlane.Blocks.compare_and_write."""
        return await self._run(self._client.compare_and_write, offset, expected, new)


class KeyValue(_Client[_nvlane.KeyValue]):
    """A key-value namespace; see nvlane.KeyValue."""

    @overload
    @classmethod
    async def open(cls, address: str, **options: Unpack[Options]) -> Self: ...
    @overload
    @classmethod
    async def open(cls, address: Sequence[str], **options: Unpack[SpreadOptions]) -> Self: ...
    @classmethod
    async def open(cls, address: Any, **options: Any) -> Self:
        """Connects. The arguments are those of nvlane.KeyValue."""
        loop = asyncio.get_running_loop()
        return cls(await loop.run_in_executor(None, partial(_nvlane.KeyValue, address, **options)))

    @property
    def value_size_max(self) -> int:
        """Bytes of the longest value."""
        return self._client.value_size_max

    async def targets(self) -> list[tuple[str, bool, int, str | None]]:
        """See nvlane.KeyValue.targets."""
        return await self._run(self._client.targets)

    async def set(
        self, key: str | Buffer, value: Buffer, *, if_absent: bool = False, if_present: bool = False
    ) -> bool:
        """See nvlane.KeyValue.set."""
        return await self._run(self._client.set, key, value, if_absent=if_absent, if_present=if_present)

    async def get(self, key: str | Buffer) -> bytes | None:
        """See nvlane.KeyValue.get."""
        return await self._run(self._client.get, key)

    async def get_into(self, key: str | Buffer, buffer: Buffer) -> int | None:
        """See nvlane.KeyValue.get_into."""
        return await self._run(self._client.get_into, key, buffer)

    async def delete(self, key: str | Buffer) -> None:
        """See nvlane.KeyValue.delete."""
        await self._run(self._client.delete, key)

    async def exists(self, key: str | Buffer) -> bool:
        """See nvlane.KeyValue.exists."""
        return await self._run(self._client.exists, key)

    async def incr(self, key: str | Buffer, by: int = 1, *, initial: int | None = None) -> int:
        """See nvlane.KeyValue.incr."""
        return await self._run(self._client.incr, key, by, initial=initial)

    async def compare_and_swap(self, key: str | Buffer, expected: int, new: int) -> bool:
        """See nvlane.KeyValue.compare_and_swap."""
        return await self._run(self._client.compare_and_swap, key, expected, new)

    async def get_many(self, keys: Iterable[str | Buffer]) -> list[bytes | None]:
        """See nvlane.KeyValue.get_many."""
        return await self._run(self._client.get_many, keys)

    async def get_many_into(
        self, keys: Iterable[str | Buffer], buffers: Iterable[Buffer | list[Buffer]]
    ) -> list[bool | None]:
        """See nvlane.KeyValue.get_many_into."""
        return await self._run(self._client.get_many_into, keys, buffers)

    async def set_many(
        self,
        keys: Iterable[str | Buffer],
        values: Iterable[Buffer | list[Buffer]],
        *,
        if_absent: bool = False,
        ttl: int = 0,
    ) -> list[bool]:
        """See nvlane.KeyValue.set_many."""
        return await self._run(self._client.set_many, keys, values, if_absent=if_absent, ttl=ttl)

    async def delete_many(self, keys: Iterable[str | Buffer]) -> None:
        """See nvlane.KeyValue.delete_many."""
        await self._run(self._client.delete_many, keys)

    async def exists_many(self, keys: Iterable[str | Buffer], *, lease: int = 0) -> list[bool]:
        """See nvlane.KeyValue.exists_many."""
        return await self._run(self._client.exists_many, keys, lease=lease)

    async def pin_many(self, keys: Iterable[str | Buffer], lease: int) -> list[bool]:
        """See nvlane.KeyValue.pin_many."""
        return await self._run(self._client.pin_many, keys, lease)

    async def unpin_many(self, keys: Iterable[str | Buffer]) -> None:
        """See nvlane.KeyValue.unpin_many."""
        await self._run(self._client.unpin_many, keys)

    async def keys_after(self, after: str | Buffer | None = None) -> list[bytes]:
        """See nvlane.KeyValue.keys_after."""
        return await self._run(self._client.keys_after, after)

    async def keys(self) -> AsyncIterator[bytes]:
        """All keys, in no particular order."""
        after: bytes | None = None
        while page := await self.keys_after(after):
            for key in page:
                yield key
            after = page[-1]

    async def flush(self) -> None:
        """See nvlane.KeyValue.flush."""
        await self._run(self._client.flush)
