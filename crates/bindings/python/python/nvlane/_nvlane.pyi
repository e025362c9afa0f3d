"""The native part of nvlane."""

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, TypedDict, overload

from typing_extensions import Buffer, Self, Unpack

VERSION: str

class CommonOptions(TypedDict, total=False):
    """How every client connects: keyword arguments of Blocks and KeyValue.

    lanes: I/O queues, each with a connection and a thread that sleeps while idle (1 to 64, default 1).
    depth: outstanding commands per lane (2 to 1,023, default 128).
    hostnqn, hostid: identity of this host (default: that of this machine).
    dhchap_secret, dhchap_ctrl_secret: secrets of this host and of the target (DHHC-1:...) for authentication.
    tls_key: pre-shared key of TLS 1.3 (NVMeTLSkey-1:...); tls_key_compat: derive as libnvme before 1.16.
    concat: TLS with a key that authentication generates.
    header_digest, data_digest: CRC32C of every PDU.
    connect_timeout: seconds of each step of a connection (default 10). Opening a client makes one attempt.
    timeout: seconds until a command without an answer is aborted (default 30).
    """

    lanes: int
    depth: int
    hostnqn: str
    hostid: str
    dhchap_secret: str
    dhchap_ctrl_secret: str
    tls_key: str
    tls_key_compat: bool
    concat: bool
    header_digest: bool
    data_digest: bool
    connect_timeout: float
    timeout: float

class Options(CommonOptions, total=False):
    """How a client of one target connects.

    reconnect_timeout: seconds until a lost target is given up (default 600); 0 to never connect again.
    fast_io_fail: seconds for which commands wait for a lost target (default: until it is given up).
    """

    reconnect_timeout: float
    fast_io_fail: float

class SpreadOptions(CommonOptions, total=False):
    """How a KeyValue of several addresses connects, and spreads keys over them.

    deadline: seconds without any byte after which a target with commands outstanding is lost (default 1).
    immutable: whether a key has one value for ever, or none, as in a cache (default): other targets take the place of lost
        ones, and what cannot be reached is a miss. With False only one target ever has a key, and calls fail without it.
    copies: targets that store each value (default 1).
    weights: shares of the keys, one for each address, 1 to 65,535 (default all 1).
    names: names of the targets, one for each address, from which the targets of keys follow (default HOST:PORT/NQN).
    """

    deadline: float
    immutable: bool
    copies: int
    weights: Sequence[int]
    names: Sequence[str]

class Completions:
    """Operations that were started and not waited for: pass it as `completions` to a method, which then returns the number
    of the operation. The event descriptor is readable when operations may have ended."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[tuple[int, Any, BaseException | None]]: ...
    def cancel(self, number: int) -> bool: ...
    def close(self) -> None: ...

class Blocks:
    def __init__(self, address: str, **options: Unpack[Options]) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def address(self) -> str: ...
    @overload
    def read(self, offset: int, length: int, *, completions: None = None) -> bytes: ...
    @overload
    def read(self, offset: int, length: int, *, completions: Completions) -> int: ...
    @overload
    def read_into(self, offset: int, buffer: Buffer, *, completions: None = None) -> None: ...
    @overload
    def read_into(self, offset: int, buffer: Buffer, *, completions: Completions) -> int: ...
    @overload
    def write(self, offset: int, data: Buffer, *, durable: bool = False, completions: None = None) -> None: ...
    @overload
    def write(self, offset: int, data: Buffer, *, durable: bool = False, completions: Completions) -> int: ...
    @overload
    def flush(self, *, completions: None = None) -> None: ...
    @overload
    def flush(self, *, completions: Completions) -> int: ...
    @overload
    def discard(self, offset: int, length: int, *, completions: None = None) -> None: ...
    @overload
    def discard(self, offset: int, length: int, *, completions: Completions) -> int: ...
    @overload
    def write_zeroes(
        self, offset: int, length: int, *, discard: bool = False, completions: None = None
    ) -> None: ...
    @overload
    def write_zeroes(
        self, offset: int, length: int, *, discard: bool = False, completions: Completions
    ) -> int: ...
    @overload
    def compare(self, offset: int, data: Buffer, *, completions: None = None) -> bool: ...
    @overload
    def compare(self, offset: int, data: Buffer, *, completions: Completions) -> int: ...
    @overload
    def compare_and_write(
        self, offset: int, expected: Buffer, new: Buffer, *, completions: None = None
    ) -> bool: ...
    @overload
    def compare_and_write(self, offset: int, expected: Buffer, new: Buffer, *, completions: Completions) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]: ...

class KeyValue:
    @overload
    def __init__(self, address: str, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self, address: Sequence[str], **options: Unpack[SpreadOptions]) -> None: ...
    @property
    def value_size_max(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def address(self) -> str: ...
    @overload
    def targets(self, *, completions: None = None) -> list[tuple[str, bool, int, str | None]]: ...
    @overload
    def targets(self, *, completions: Completions) -> int: ...
    @overload
    def set(
        self,
        key: str | Buffer,
        value: Buffer,
        *,
        if_absent: bool = False,
        if_present: bool = False,
        completions: None = None,
    ) -> bool: ...
    @overload
    def set(
        self,
        key: str | Buffer,
        value: Buffer,
        *,
        if_absent: bool = False,
        if_present: bool = False,
        completions: Completions,
    ) -> int: ...
    @overload
    def get(self, key: str | Buffer, *, completions: None = None) -> bytes | None: ...
    @overload
    def get(self, key: str | Buffer, *, completions: Completions) -> int: ...
    @overload
    def get_into(self, key: str | Buffer, buffer: Buffer, *, completions: None = None) -> int | None: ...
    @overload
    def get_into(self, key: str | Buffer, buffer: Buffer, *, completions: Completions) -> int: ...
    @overload
    def delete(self, key: str | Buffer, *, completions: None = None) -> None: ...
    @overload
    def delete(self, key: str | Buffer, *, completions: Completions) -> int: ...
    @overload
    def exists(self, key: str | Buffer, *, completions: None = None) -> bool: ...
    @overload
    def exists(self, key: str | Buffer, *, completions: Completions) -> int: ...
    @overload
    def incr(
        self, key: str | Buffer, by: int = 1, *, initial: int | None = None, completions: None = None
    ) -> int: ...
    @overload
    def incr(
        self, key: str | Buffer, by: int = 1, *, initial: int | None = None, completions: Completions
    ) -> int: ...
    @overload
    def compare_and_swap(
        self, key: str | Buffer, expected: int, new: int, *, completions: None = None
    ) -> bool: ...
    @overload
    def compare_and_swap(self, key: str | Buffer, expected: int, new: int, *, completions: Completions) -> int: ...
    @overload
    def get_many(self, keys: Iterable[str | Buffer], *, completions: None = None) -> list[bytes | None]: ...
    @overload
    def get_many(self, keys: Iterable[str | Buffer], *, completions: Completions) -> int: ...
    @overload
    def get_many_into(
        self, keys: Iterable[str | Buffer], buffers: Iterable[Buffer | list[Buffer]], *, completions: None = None
    ) -> list[bool | None]: ...
    @overload
    def get_many_into(
        self, keys: Iterable[str | Buffer], buffers: Iterable[Buffer | list[Buffer]], *, completions: Completions
    ) -> int: ...
    @overload
    def set_many(
        self,
        keys: Iterable[str | Buffer],
        values: Iterable[Buffer | list[Buffer]],
        *,
        if_absent: bool = False,
        ttl: int = 0,
        completions: None = None,
    ) -> list[bool]: ...
    @overload
    def set_many(
        self,
        keys: Iterable[str | Buffer],
        values: Iterable[Buffer | list[Buffer]],
        *,
        if_absent: bool = False,
        ttl: int = 0,
        completions: Completions,
    ) -> int: ...
    @overload
    def delete_many(self, keys: Iterable[str | Buffer], *, completions: None = None) -> None: ...
    @overload
    def delete_many(self, keys: Iterable[str | Buffer], *, completions: Completions) -> int: ...
    @overload
    def exists_many(
        self, keys: Iterable[str | Buffer], *, lease: int = 0, completions: None = None
    ) -> list[bool]: ...
    @overload
    def exists_many(self, keys: Iterable[str | Buffer], *, lease: int = 0, completions: Completions) -> int: ...
    @overload
    def pin_many(
        self, keys: Iterable[str | Buffer], lease: int, *, completions: None = None
    ) -> list[bool]: ...
    @overload
    def pin_many(self, keys: Iterable[str | Buffer], lease: int, *, completions: Completions) -> int: ...
    @overload
    def unpin_many(self, keys: Iterable[str | Buffer], *, completions: None = None) -> None: ...
    @overload
    def unpin_many(self, keys: Iterable[str | Buffer], *, completions: Completions) -> int: ...
    @overload
    def keys_after(self, after: str | Buffer | None = None, *, completions: None = None) -> list[bytes]: ...
    @overload
    def keys_after(self, after: str | Buffer | None = None, *, completions: Completions) -> int: ...
    def keys(self) -> Iterator[bytes]: ...
    @overload
    def flush(self, *, completions: None = None) -> None: ...
    @overload
    def flush(self, *, completions: Completions) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]: ...
