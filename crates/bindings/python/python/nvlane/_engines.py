"""What the modules for engines of language models share. It imports none of them."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import KeyValue

if TYPE_CHECKING:
    from ._nvlane import Options

# Of the 250 bytes of a key.
PREFIX_BYTES_MAX = 64


def connect(target: Any, options: Options) -> KeyValue:
    """A client for a cache, whose every operation ends soon: a lost target costs misses. Options replace these defaults."""
    if isinstance(target, KeyValue):
        if options:
            raise TypeError(f"{', '.join(sorted(options))}: options of a connection, and the client is connected already")
        return target
    chosen: Any = {"lanes": 4, "timeout": 10.0}
    if isinstance(target, str):
        # Several targets have a deadline instead, by default of 1 s.
        chosen["fast_io_fail"] = 1.0
    chosen.update(options)
    return KeyValue(target, **chosen)


def identity(**fields: Any) -> str:
    """32 hexadecimal digits that differ between any two caches whose values are not interchangeable."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def checked_prefix(prefix: str) -> str:
    """A prefix of keys that leaves room for the rest of them."""
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise ValueError(f"prefix has {len(prefix.encode())} bytes: at most {PREFIX_BYTES_MAX}")
    return prefix


def memory_at(address: int, length: int) -> memoryview:
    """Writable memory of this process, which the caller keeps in place."""
    return memoryview((ctypes.c_ubyte * length).from_address(address))


def leading(found: Sequence[bool | None]) -> int:
    """How many are true before the first that is not."""
    return next((index for index, is_found in enumerate(found) if not is_found), len(found))


def with_base(own: type, module: str, base: str, **members: Any) -> type:
    """The class that an engine loads: `own` as a subclass of a class of the engine, which is imported now."""
    parent = getattr(importlib.import_module(module), base)
    name = own.__name__.lstrip("_")
    return type(name, (own, parent), {"__doc__": own.__doc__, "__module__": own.__module__, **members})
