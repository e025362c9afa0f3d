"""A storage for LMCache's native plugins: keys and values of a cache of language-model states on an NVMe/TCP target.

    --l2-adapter '{"type": "native_plugin", "module_path": "nvlane.lmcache", "class_name": "Client",
                   "adapter_params": {"address": "192.0.2.1:4420/nqn.2026-01.com.example:cache", "lanes": 4},
                   "max_capacity_gb": 0}'

Keys have up to 250 bytes; a longer one is a miss and is not stored. A lost target costs misses: each operation ends within
`fast_io_fail` and `timeout` seconds, and the target is used again as soon as it is back. With several addresses (a list) keys are
spread over the targets, and others take the place of a lost one after `deadline` seconds. This module imports nothing of LMCache.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from . import Completions, KeyValue

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._nvlane import Options, SpreadOptions

__all__ = ["Client"]

KEY_BYTES_MAX = 250


class Client:
    """The seven methods that LMCache calls. Submissions come from several threads, completions are drained by one."""

    @overload
    def __init__(self, address: str, prefix: str = "", ttl: int = 0, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self, address: Sequence[str], prefix: str = "", ttl: int = 0, **options: Unpack[SpreadOptions]
    ) -> None: ...
    def __init__(self, address: str | Sequence[str], prefix: str = "", ttl: int = 0, **options: Any) -> None:
        """Connects.

        address: HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace, or a list of several.
        prefix: precedes every key, so that several caches share a namespace.
        ttl: seconds for which a value is kept; 0 for ever, or until the target evicts it.
        options: those of nvlane.KeyValue; by default 4 lanes, and 10 seconds for each command. Commands end 1 second after a target
            is lost.
        """
        chosen: dict[str, Any] = {"lanes": 4, "timeout": 10.0}
        if isinstance(address, str):
            chosen["fast_io_fail"] = 1.0
        chosen.update(options)
        self._client = KeyValue(address, **chosen)
        self._completions = Completions()
        self._prefix, self._ttl = prefix, ttl
        # By number of the operation: indices of the keys that were sent, number of all keys, whether it stores.
        self._asked: dict[int, tuple[list[int], int, bool]] = {}
        self._lock = threading.Lock()

    def event_fd(self) -> int:
        """A descriptor that is readable when completions wait."""
        return self._completions.fileno()

    def submit_batch_set(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        """Stores values, each as a whole or not at all."""
        names, at = self._names(keys)
        chosen = [values[index] for index in at]
        return self._submit(at, len(keys), True, self._client.set_many, names, chosen, ttl=self._ttl)

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        """Fills buffers; a value of another length is a miss."""
        names, at = self._names(keys)
        chosen = [buffers[index] for index in at]
        return self._submit(at, len(keys), False, self._client.get_many_into, names, chosen)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Asks for all keys in one round trip for each 1,000; none is marked as used."""
        names, at = self._names(keys)
        return self._submit(at, len(keys), False, self._client.exists_many, names)

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
        """The keys that a target can have, and their places."""
        names = [(self._prefix + key).encode() for key in keys]
        at = [index for index, name in enumerate(names) if 1 <= len(name) <= KEY_BYTES_MAX]
        return [names[index] for index in at], at

    def _submit(self, at: list[int], count: int, is_set: bool, method: Any, *arguments: Any, **keywords: Any) -> int:
        # Under the lock: the drain finds what belongs to the number.
        with self._lock:
            number: int = method(*arguments, completions=self._completions, **keywords)
            self._asked[number] = (at, count, is_set)
        return number
