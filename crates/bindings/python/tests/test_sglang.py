"""SGLang's storage, called as its cache controller calls it, with pages of a host pool."""

import os
import time
from typing import Any

import numpy
import nvlane
import nvlane.sglang
import pytest
from conftest import Target
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)

PAGE = 4


class HostPool:
    """Pages of several layers, each with keys and values: `page_first` in two pieces, `layer_first` in two for each layer."""

    def __init__(self, layout: str = "page_first", pages: int = 16, layers: int = 3, token_bytes: int = 4096) -> None:
        self.layout, self.page_size, self.dtype, self.layers = layout, PAGE, "bfloat16", layers
        self.size_per_token = 2 * layers * token_bytes
        self.shape = (2, layers, pages, PAGE * token_bytes)
        if layout == "page_first":
            self.shape = (2, pages, layers, PAGE * token_bytes)
        self.memory = numpy.zeros(self.shape, numpy.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        pieces = []
        for page in [int(index) // PAGE for index in list(indices)[::PAGE]]:
            if self.layout == "page_first":
                pieces += [self.memory[kind, page] for kind in range(2)]
            else:
                pieces += [self.memory[kind, layer, page] for layer in range(self.layers) for kind in range(2)]
        return [piece.ctypes.data for piece in pieces], [piece.nbytes for piece in pieces]

    def page(self, page: int) -> Any:
        return self.memory[:, page] if self.layout == "page_first" else self.memory[:, :, page]


class Tensor:
    """What the storage asks a tensor of torch for."""

    class device:
        type = "cpu"

    def __init__(self, array: Any) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def contiguous(self) -> "Tensor":
        return Tensor(numpy.ascontiguousarray(self.array))


def config(address: Any, **changes: Any) -> HiCacheStorageConfig:
    fields: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 2,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "meta-llama/Llama-3.1-8B",
    }
    # A busy machine is no lost target.
    patient: dict[str, Any] = {}
    if isinstance(address, str):
        patient = {"lanes": 2, "connect_timeout": 60.0, "fast_io_fail": 30.0, "timeout": 30.0}
    own = {"address": address, "prefix": changes.pop("prefix", "tests/"), **patient, **changes.pop("nvlane", {})}
    fields |= {"extra_config": {"interface_v1": changes.pop("interface_v1", 1), "nvlane": own}} | changes
    return HiCacheStorageConfig(**fields)


def storage(address: Any, pool: HostPool, **changes: Any) -> Any:
    # As SGLang's factory: a dynamic backend.
    made = nvlane.sglang.HiCacheNvlane(config(address, **changes), {})
    assert isinstance(made, HiCacheStorage)
    made.register_mem_pool_host(pool)
    return made


def hashes(count: int, start: int = 0) -> list[str]:
    return [f"{start + index:064x}" for index in range(count)]


def indices(pages: list[int]) -> list[int]:
    return [page * PAGE + token for page in pages for token in range(PAGE)]


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_are_stored_and_loaded_into_other_pages(keys: Target, layout: str) -> None:
    pool = HostPool(layout)
    pool.memory[...] = numpy.frombuffer(os.urandom(pool.memory.nbytes), numpy.uint8).reshape(pool.shape)
    cache = storage(keys.address(1), pool)
    names = hashes(5)
    assert cache.batch_exists(names) == 0
    assert cache.batch_set_v1(names, indices([0, 2, 4, 6, 8])) == [True] * 5
    assert cache.batch_exists([*names, *hashes(1, 900), *names]) == 5
    wanted = [pool.page(page).copy() for page in (0, 2, 4, 6, 8)]
    untouched = pool.page(15).copy()
    to = [1, 3, 5, 7, 9, 10]
    assert cache.batch_get_v1([*names, *hashes(1, 900)], indices(to)) == [True] * 5 + [False]
    assert all((pool.page(page) == page_wanted).all() for page, page_wanted in zip(to, wanted))
    assert (pool.page(15) == untouched).all()
    # Again: none of it is sent.
    assert cache.batch_set_v1(names, indices([0, 2, 4, 6, 8])) == [True] * 5
    assert cache.counts == {
        "pages_loaded": 5, "pages_missed": 1, "pages_stored": 5, "pages_present": 5, "errors": 0,
    }  # fmt: skip
    cache.clear()
    cache.close()
    cache.close()


def test_what_differs_is_never_shared(keys: Target) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        pool = HostPool()
        cache = storage(client, pool)
        names = hashes(2, 100)
        assert cache.batch_set_v1(names, indices([0, 1])) == [True, True]
        others = [
            storage(client, pool, model_name="meta-llama/Llama-3.1-70B"),
            storage(client, pool, tp_rank=1),
            storage(client, pool, tp_size=4),
            storage(client, pool, pp_size=2),
            storage(client, pool, attn_cp_size=2),
            storage(client, pool, is_mla_model=True),
            storage(client, pool, prefix="others/"),
            storage(client, pool, interface_v1=0),
            storage(client, HostPool("layer_first")),
            storage(client, HostPool(token_bytes=8192)),
        ]
        pool.dtype = "float16"
        others.append(storage(client, pool))
        pool.dtype, pool.page_size = "bfloat16", 1
        others.append(storage(client, pool))
        pool.page_size = PAGE
        assert [other.batch_exists(names) for other in others] == [0] * len(others)
        same = storage(client, pool)
        assert same.batch_exists(names) == 2
        # Ranks of MLA share pages.
        mla = [storage(client, pool, is_mla_model=True, tp_rank=rank) for rank in range(2)]
        assert mla[0].batch_set_v1(names, indices([0, 1])) == [True, True]
        assert mla[1].batch_exists(names) == 2


def test_a_cleared_cache_has_no_pages(keys: Target) -> None:
    pool = HostPool()
    cache = storage(keys.address(1), pool)
    names = hashes(3, 200)
    cache.batch_set_v1(names, indices([0, 1, 2]))
    cache.clear()
    assert cache.batch_exists(names) == 0
    assert cache.batch_set_v1(names[:1], indices([0])) == [True]
    later = storage(keys.address(1), pool)
    assert later.batch_exists(names) == 1
    cache.close()
    later.close()


def test_a_page_of_another_length_is_a_miss_and_is_replaced(keys: Target) -> None:
    pool = HostPool()
    with nvlane.KeyValue(keys.address(1)) as client:
        cache = storage(client, pool)
        name = hashes(1, 300)
        assert cache.batch_set_v1(name, indices([3])) == [True]
        client.set_many([cache._pools["kv"].start + name[0]], [b"short"])
        assert cache.batch_exists(name) == 1
        assert cache.batch_get_v1(name, indices([4])) == [False]
        assert cache.batch_exists(name) == 0
        assert cache.batch_set_v1(name, indices([3])) == [True]
        assert cache.batch_get_v1(name, indices([4])) == [True]
        cache.close()
        assert not client.closed


def test_a_page_that_was_never_stored_costs_one_round_trip(keys: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = storage(keys.address(1), HostPool())
    deleted: list[str] = []
    monkeypatch.setattr(cache, "_delete", lambda names: deleted.extend(names) or [])
    names = hashes(2, 350)
    assert cache.batch_set_v1(names[:1], indices([0])) == [True]
    assert cache.batch_get_v1(names, indices([1, 2])) == [True, False]
    assert deleted == []
    cache._stores.set_many([cache._pools["kv"].start + names[1]], [b"short"])
    assert cache.batch_get_v1(names, indices([1, 2])) == [True, False]
    assert deleted == [cache._pools["kv"].start + names[1]]
    cache.close()


def transfer(name: PoolName, keys: list[str], pages: list[int], policy: str = "all_pages") -> PoolTransfer:
    return PoolTransfer(name, host_indices=indices(pages), keys=keys, hit_policy=PoolHitPolicy(policy))


def test_pages_of_several_pools_move_in_one_batch(keys: Target) -> None:
    pools = {PoolName.KV: HostPool(), PoolName.MAMBA: HostPool("layer_first", token_bytes=512)}
    for pool in pools.values():
        pool.memory[...] = numpy.frombuffer(os.urandom(pool.memory.nbytes), numpy.uint8).reshape(pool.shape)
    cache = storage(keys.address(1), pools[PoolName.KV])
    names = hashes(4, 500)
    with pytest.raises(RuntimeError, match="'mamba'.*register_mem_host_pool_v2"):
        cache.batch_get_v2([transfer(PoolName.MAMBA, names, [0, 1, 2, 3])])
    for name, pool in pools.items():
        cache.register_mem_host_pool_v2(pool, name)
    cache.on_host_pools_registered()
    sent = [transfer(PoolName.KV, names, [0, 1, 2, 3]), transfer(PoolName.MAMBA, names[1::2], [5, 6])]
    assert cache.batch_set_v2(sent) == {"kv": [True] * 4, "mamba": [True] * 2}
    # The same pages as those of one pool.
    assert cache.batch_exists(names) == 4
    wanted = transfer(PoolName.MAMBA, names, [8, 9, 10, 11])
    got = cache.batch_get_v2([transfer(PoolName.KV, names[:1], [12]), wanted])
    assert got == {"kv": [True], "mamba": [False, True, False, True]}
    state = pools[PoolName.MAMBA]
    assert (state.page(9) == state.page(5)).all() and (state.page(11) == state.page(6)).all()
    assert (pools[PoolName.KV].page(12) == pools[PoolName.KV].page(0)).all()
    with pytest.raises(ValueError, match="host_indices has 4 tokens: 4 pages have 16"):
        cache.batch_get_v2([transfer(PoolName.MAMBA, names, [0])])

    def usable(policy: str, window: list[str], asked: list[str] = names) -> tuple[int, dict[str, int], list[int] | None]:
        wanted = PoolTransfer(PoolName.MAMBA, keys=window, hit_policy=PoolHitPolicy(policy))
        result = cache.batch_exists_v2([*asked, *hashes(1, 990)], [wanted])
        return result.kv_hit_pages, result.extra_pool_hit_pages, result.restorable_prefix_pages

    # States exist at the ends of the second and the fourth page.
    assert usable("trailing_pages", names[:1]) == (4, {"kv": 4, "mamba": 4}, [2, 4])
    assert usable("trailing_pages", names[:2]) == (0, {"kv": 4}, [])
    assert usable("all_pages", names) == (0, {"kv": 4}, [])
    assert usable("all_pages", names, [names[1], names[3]]) == (2, {"kv": 2, "mamba": 2}, [1, 2])
    assert usable("trailing_pages", names[:1], hashes(2, 980)) == (0, {}, [])
    with pytest.raises(ValueError, match="block_groups"):
        usable("block_groups", names)
    cache.clear()
    assert cache.batch_get_v2([wanted]) == {"mamba": [False] * 4}
    cache.close()


def test_ranks_with_mla_share_what_is_the_same_in_all(keys: Target) -> None:
    class MLATokenToKVPoolHost(HostPool):
        pass

    names = hashes(1, 700)
    pools = [("indexer", HostPool(), True), ("mamba", HostPool(), False), ("draft", HostPool(), False)]
    pools.append(("draft", MLATokenToKVPoolHost(), True))
    with nvlane.KeyValue(keys.address(1)) as client:
        for name, pool, is_shared in pools:
            prefix = f"{type(pool).__name__[:3]}/"
            ranks = [storage(client, pool, is_mla_model=True, tp_rank=rank, prefix=prefix) for rank in range(2)]
            for rank in ranks:
                rank.register_mem_host_pool_v2(pool, PoolName(name))
            assert ranks[0].batch_set_v2([transfer(PoolName(name), names, [0])]) == {name: [True]}
            assert ranks[1].batch_get_v2([transfer(PoolName(name), names, [1])]) == {name: [is_shared]}


def test_tensors_and_addresses(keys: Target) -> None:
    cache = storage(keys.address(1), HostPool(), interface_v1=0)
    pages = [Tensor(numpy.arange(start, start + 1000, dtype=numpy.float32)) for start in range(4)]
    names = hashes(4, 400)
    assert cache.batch_set(names, pages)
    assert cache.exists(names[0]) and not cache.exists("none")
    targets = [Tensor(numpy.zeros(1000, numpy.float32)) for _ in range(5)]
    got = cache.batch_get([*names, "none"], targets)
    assert got[:4] == targets[:4] and got[4] is None
    assert all((target.array == page.array).all() for target, page in zip(targets, pages))
    assert cache.get(names[0], Tensor(numpy.zeros(999, numpy.float32))) is None
    # As the tests of SGLang's storages: addresses with sizes.
    buffer = numpy.arange(2048, dtype=numpy.float32)
    half = buffer.nbytes // 2
    assert cache.set("address", target_location=buffer.ctypes.data, target_sizes=half) is True
    assert cache.get("address", target_location=buffer.ctypes.data + half, target_sizes=half) is True
    assert (buffer[:1024] == buffer[1024:]).all()
    strided = Tensor(numpy.arange(2000, dtype=numpy.float32)[::2])
    assert cache.set("strided", strided)
    assert cache.get("strided", targets[0]) is targets[0]
    assert (targets[0].array == strided.array).all()
    cache.close()


def test_a_lost_target_costs_misses_and_is_used_again() -> None:
    target = Target("kv:ram:64M")
    pool = HostPool()
    cache = storage(target.address(1), pool, nvlane={"fast_io_fail": 1.0, "timeout": 5.0})
    names = hashes(2)
    assert cache.batch_set_v1(names, indices([0, 1])) == [True, True]
    target.kill()
    start = time.monotonic()
    assert cache.batch_exists(names) == 0
    assert cache.batch_get_v1(names, indices([2, 3])) == [False, False]
    assert cache.batch_set_v1(names, indices([0, 1])) == [False, False]
    assert time.monotonic() - start < 40
    target.start()
    deadline = time.monotonic() + 30
    while cache.batch_set_v1(names, indices([0, 1])) != [True, True]:
        assert time.monotonic() < deadline, "the target is back"
        time.sleep(0.1)
    while cache.batch_exists(names) != 2:
        assert time.monotonic() < deadline, "the target is back"
        time.sleep(0.1)
    cache.close()
    target.kill()


def test_invalid_arguments_say_which_and_why(keys: Target) -> None:
    made = nvlane.sglang.HiCacheNvlane
    cache = made(config(keys.address(1)))
    pool = HostPool()
    for call, kind, words in [
        (lambda: cache.batch_exists(hashes(1)), RuntimeError, "register_mem_pool_host"),
        (lambda: made(config(keys.address(1), nvlane={"lane": 1})), TypeError, "no argument lane"),
        (lambda: made(config(keys.address(1), prefix="p" * 65)), ValueError, "65 bytes"),
        (lambda: made(config("nowhere")), ValueError, "names no subsystem"),
    ]:
        with pytest.raises(kind, match=words):
            call()
    without = config(keys.address(1))
    without.extra_config = {"address": keys.address(1)}
    with pytest.raises(ValueError, match='"nvlane" has to be an object'):
        made(without)
    cache.register_mem_pool_host(pool)
    for call, kind, words in [
        (lambda: cache.batch_get_v1(hashes(2), indices([0])), ValueError, "host_indices has 4 tokens"),
        (lambda: cache.get("key", 4096), TypeError, "target_sizes"),
        (lambda: cache.get("k" * 250, Tensor(numpy.zeros(4))), ValueError, "bytes: keys have"),
        (lambda: cache.get("key", Tensor(numpy.zeros(8)[::2])), ValueError, "not contiguous"),
    ]:
        with pytest.raises(kind, match=words):
            call()
    cache.close()
