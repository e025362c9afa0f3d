"""NVMe/TCP from Python: block and key-value namespaces of any standard target, without a kernel module and without root.

    import nvlane

    with nvlane.Blocks("192.0.2.1:4420/nqn.2026-01.com.example:disks?ns=1") as disk:
        block = bytearray(disk.read(0, disk.block_size))
        block[0] ^= 1
        disk.write(0, block)
        disk.flush()

    with nvlane.KeyValue("192.0.2.1:4420/nqn.2026-01.com.example:cache", lanes=2) as cache:
        cache.set("greeting", b"hello")
        cache.get("greeting")

A KeyValue of a list of addresses spreads its keys over several targets. Calls release the interpreter's lock while they wait, and any number of threads may use one client. `nvlane.aio` has the
same classes for asyncio, and `Completions` is for programs with an event loop of their own.
"""

from ._nvlane import VERSION as __version__
from ._nvlane import Blocks, Completions, KeyValue
from .errors import CommandError, ConnectionLost, Error, ResourceError

__all__ = ["Blocks", "CommandError", "Completions", "ConnectionLost", "Error", "KeyValue", "ResourceError", "__version__"]
