"""An fsspec file system whose files are block namespaces: fsspec.open("nvlane://HOST:PORT/NQN?ns=1").

The address is the path. A namespace has a fixed size, so that files are opened for reading (rb); nvlane.Blocks writes.
"""

from __future__ import annotations

from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem  # type: ignore[import-untyped]

from . import Blocks

__all__ = ["NvlaneFileSystem"]


class NvlaneFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Block namespaces as files. Keyword arguments are those of nvlane.Blocks. One client per address stays open."""

    protocol = "nvlane"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = ("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous")
        self._options = {name: value for name, value in options.items() if name not in own}
        self._clients: dict[str, Blocks] = {}

    def blocks(self, path: str) -> Blocks:
        """The client of this address."""
        path = self._strip_protocol(path)
        client = self._clients.get(path)
        if client is None or client.closed:
            client = self._clients[path] = Blocks(path, **self._options)
        return client

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of a namespace."""
        path = self._strip_protocol(path)
        return {"name": path, "size": self.blocks(path).size, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The namespace itself: nvlane discover lists those of a target."""
        info = self.info(path)
        return [info if detail else info["name"]]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Bytes from start to end, which need not be multiples of the block size."""
        blocks = self.blocks(path)
        size, step = blocks.size, blocks.block_size
        first = _position(start, 0, size)
        last = _position(end, size, size)
        if last <= first:
            return b""
        lowest = first - first % step
        highest = -(-last // step) * step
        data = blocks.read(lowest, highest - lowest)
        return data[first - lowest : last - lowest]

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: Any = None, **options: Any
    ) -> _File:
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: a namespace has a fixed size and is opened with rb; nvlane.Blocks writes it")
        return _File(self, path, mode, block_size or "default", cache_options=cache_options, **options)


class _File(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)


def _position(value: int | None, default: int, size: int) -> int:
    """As an index of a slice: negative from the end."""
    if value is None:
        return default
    return max(0, size + value) if value < 0 else min(value, size)
