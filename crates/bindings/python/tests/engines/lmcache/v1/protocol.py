"""The description that LMCache puts in front of chunks."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

# Length, format, type and four dimensions.
FORMAT = "iiiiiii"


@dataclasses.dataclass
class RemoteMetadata:
    length: int
    shapes: list[tuple[int, ...]]
    dtypes: list[int]
    fmt: int

    def serialize(self) -> bytes:
        return struct.pack(FORMAT, self.length, self.fmt, *self.dtypes, *self.shapes[0])

    @staticmethod
    def deserialize(packed: Any) -> RemoteMetadata:
        length, fmt, dtype, *shape = struct.unpack_from(FORMAT, packed)
        return RemoteMetadata(length, [tuple(shape)], [dtype], fmt)
