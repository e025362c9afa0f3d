"""What LMCache's native plugin does with its storage: python lmcache_client.py HOST:PORT/NQN?ns=1"""

import select
import sys

from nvlane.lmcache import Client

client = Client(sys.argv[1], prefix="example/", lanes=2)


def wait_for(number: int) -> tuple[bool, str, list[bool] | None]:
    """Success, error, and for each key whether it was found."""
    while True:
        select.select([client.event_fd()], [], [])
        for ended, *result in client.drain_completions():
            if ended == number:
                return tuple(result)


keys = [f"meta-llama/Llama-3.1-8B@00000000@0@{chunk:064x}" for chunk in range(4)]
chunks = [memoryview(bytes([number]) * (4 << 20)) for number in range(4)]
print("stored", wait_for(client.submit_batch_set(keys, chunks)))
print("found", wait_for(client.submit_batch_exists([*keys, "missing"])))
buffers = [memoryview(bytearray(4 << 20)) for _ in keys]
print("loaded", wait_for(client.submit_batch_get(keys, buffers)))
assert buffers == chunks
print("deleted", wait_for(client.submit_batch_delete(keys)))
client.close()
