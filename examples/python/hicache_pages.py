"""What SGLang's hierarchical cache does with its storage: python hicache_pages.py HOST:PORT/NQN?ns=1

A server needs no program, but the options that `help(nvlane.sglang)` has.
"""

import array
import hashlib
import sys

from nvlane.sglang import HiCacheNvlane
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig


class HostPool:
    """In place of SGLang's: pages of 64 tokens of 16 KiB, half of it keys and half of it values."""

    layout, dtype, page_size, size_per_token = "page_first", "bfloat16", 64, 16384

    def __init__(self, pages):
        self.half = self.page_size * self.size_per_token // 2
        self.memory = array.array("B", bytes(2 * pages * self.half))
        self.values = pages * self.half

    def get_page_buffer_meta(self, indices):
        start = self.memory.buffer_info()[0]
        keys = [start + index // self.page_size * self.half for index in indices[:: self.page_size]]
        addresses = [address for key in keys for address in (key, key + self.values)]
        return addresses, [self.half] * len(addresses)


config = HiCacheStorageConfig(
    tp_rank=0,
    tp_size=1,
    pp_rank=0,
    pp_size=1,
    attn_cp_rank=0,
    attn_cp_size=1,
    is_mla_model=False,
    enable_storage_metrics=False,
    is_page_first_layout=True,
    model_name="meta-llama/Llama-3.1-8B",
    extra_config={"interface_v1": 1, "nvlane": {"address": sys.argv[1], "prefix": "example/", "lanes": 2}},
)
pool = HostPool(pages=8)
pool.memory[0 : pool.half] = array.array("B", b"k" * pool.half)
pool.memory[pool.values : pool.values + pool.half] = array.array("B", b"v" * pool.half)
storage = HiCacheNvlane(config, {})
storage.register_mem_pool_host(pool)
page, missing = (hashlib.sha256(tokens).hexdigest() for tokens in (b"first tokens", b"others"))
print("stored", storage.batch_set_v1([page], list(range(64))))
print("leading pages found", storage.batch_exists([page, missing]))
print("loaded into pages 4 and 5", storage.batch_get_v1([page, missing], list(range(4 * 64, 6 * 64))))
assert pool.memory[4 * pool.half : 5 * pool.half] == pool.memory[: pool.half]
print(storage.counts)
storage.close()
