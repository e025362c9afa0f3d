"""The interface of LMCache's connections to a remote storage."""

from __future__ import annotations

import abc
import struct
from typing import Any

from ...protocol import FORMAT


class RemoteConnector(abc.ABC):
    def __init__(self, config: Any, metadata: Any) -> None:
        assert metadata is not None
        self.meta_shapes = metadata.get_shapes()
        self.meta_dtypes = metadata.get_dtypes()
        self.meta_fmt = 1
        self.remote_metadata_bytes = struct.calcsize(FORMAT)

    @abc.abstractmethod
    async def exists(self, key: Any) -> bool: ...

    @abc.abstractmethod
    def exists_sync(self, key: Any) -> bool: ...

    @abc.abstractmethod
    async def get(self, key: Any) -> Any: ...

    @abc.abstractmethod
    async def put(self, key: Any, memory_obj: Any) -> None: ...

    @abc.abstractmethod
    async def list(self) -> Any: ...

    @abc.abstractmethod
    async def close(self) -> None: ...
