"""Exceptions. Invalid arguments raise ValueError, TypeError or BufferError; these here are what the target and the network do."""

from __future__ import annotations


class Error(Exception):
    """A command or a connection failed."""


class CommandError(Error):
    """A command failed.

    status: NVMe status (status code type in bits 8 to 10, status code in bits 0 to 7), or None without an answer.
    may_have_happened: whether a command that changes data may have been executed, or may be later.
    unflushed: whether writes before the last reconnect that were not flushed may be lost, and must be written again.
    """

    def __init__(
        self, message: str, status: int | None = None, may_have_happened: bool = False, unflushed: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.may_have_happened = may_have_happened
        self.unflushed = unflushed

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.may_have_happened, self.unflushed)


class ResourceError(Error, OSError):
    """The system gave this process no thread, descriptor or memory for a call: the message says which.

    errno: the system's number, or None.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.errno)


class ConnectionLost(Error, ConnectionError):
    """The target cannot be reached or does not accept this host, or the client ended.

    is_permanent: whether another attempt would fail in the same way, as long as host and target are configured as they are.
    """

    def __init__(self, message: str, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.is_permanent)
