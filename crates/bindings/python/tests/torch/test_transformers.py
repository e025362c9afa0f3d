"""Caches of a transformers model with random weights: what is restored gives the same tokens."""

import os
import subprocess
import sys
import time
from typing import Any

import nvlane
import nvlane.transformers
import pytest
import torch
import transformers
from conftest import Target
from nvlane.transformers import CachedPrefix

CHUNK = 8

# A busy machine is no lost target.
PATIENT: Any = {"lanes": 2, "connect_timeout": 60.0, "fast_io_fail": 30.0, "timeout": 30.0}


def tiny(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields | changes))
    return model.to(dtype).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 128, (1, length), generator=generator)


def generate(model: Any, tokens: torch.Tensor, cache: Any = None, count: int = 12) -> torch.Tensor:
    with torch.no_grad():
        return model.generate(
            tokens, cache=cache, max_new_tokens=count, do_sample=False, pad_token_id=0,
            attention_mask=torch.ones_like(tokens),
        )  # fmt: skip


def filled(model: Any, tokens: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(tokens, use_cache=True).cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_with_a_restored_cache_is_the_same_token_by_token(keys: Target, dtype: torch.dtype) -> None:
    model = tiny(dtype=dtype)
    with CachedPrefix(keys.address(1), model, chunk_tokens=CHUNK, prefix=f"{dtype}/", **PATIENT) as prefix:
        tokens = prompt(60)
        wanted = generate(model, tokens)
        assert prefix.restore(tokens).get_seq_length() == 0
        cache = transformers.DynamicCache(config=model.config)
        assert (generate(model, tokens, cache) == wanted).all()
        # Of the last token that was generated the model has no keys.
        assert prefix.save(wanted, cache) == (wanted.shape[1] - 1) // CHUNK * CHUNK
        restored = prefix.restore(tokens)
        assert restored.get_seq_length() == 56
        for (keys_of, values_of, *_), (restored_keys, restored_values, *_) in zip(cache, restored):
            assert torch.equal(keys_of[:, :, :56], restored_keys) and torch.equal(values_of[:, :, :56], restored_values)
        assert (generate(model, tokens, restored) == wanted).all()
        # Token by token, as a program of its own would.
        restored, at = prefix.restore(tokens), 56
        with torch.no_grad():
            for position in range(tokens.shape[1], wanted.shape[1]):
                logits = model(wanted[:, at:position], cache=restored).logits
                assert logits[0, -1].argmax() == wanted[0, position]
                at = position


def test_the_longest_stored_beginning_is_found(keys: Target, model: Any) -> None:
    with CachedPrefix(keys.address(1), model, chunk_tokens=CHUNK, prefix="longest/", **PATIENT) as prefix:
        tokens = prompt(64)
        assert prefix.save(tokens[0, :30].tolist(), filled(model, tokens[:, :30])) == 24
        assert prefix.stored_tokens(tokens) == prefix.restore(tokens).get_seq_length() == 24
        assert prefix.save(tokens, filled(model, tokens)) == 64
        # A model needs the input of the last token at least.
        assert prefix.restore(tokens).get_seq_length() == 56
        longer = torch.cat([tokens, prompt(5, seed=2)], 1)
        assert prefix.restore(longer).get_seq_length() == 64
        for common, found in [(63, 56), (40, 40), (39, 32), (8, 8), (7, 0), (0, 0)]:
            other = torch.cat([tokens[:, :common], (prompt(70, seed=3) + 1) % 128], 1)
            other[0, common] = (tokens[0, min(common, 63)] + 1) % 128
            assert prefix.restore(other).get_seq_length() == found
            assert (generate(model, other, prefix.restore(other)) == generate(model, other)).all()
        # The same tokens elsewhere are not the same beginning.
        assert prefix.restore(tokens[:, CHUNK:]).get_seq_length() == 0
        assert prefix.restore([]).get_seq_length() == prefix.restore([5]).get_seq_length() == 0


def test_many_groups_of_chunks(keys: Target, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with CachedPrefix(keys.address(1), model, chunk_tokens=CHUNK, prefix="groups/", **PATIENT) as prefix:
        monkeypatch.setattr(nvlane.transformers, "GROUP_BYTES", 3 * prefix._bytes())
        tokens = prompt(100)
        cache = filled(model, tokens)
        assert prefix.save(tokens, cache) == 96
        restored = prefix.restore(tokens)
        assert restored.get_seq_length() == 96
        assert all(torch.equal(one[0][:, :, :96], other[0]) for one, other in zip(cache, restored))
        # A chunk that was evicted, or is damaged, ends what is restored.
        names = prefix._names(tokens[0].tolist())
        prefix._client.set_many([names[7]], [b"damaged"])
        restored = prefix.restore(tokens)
        assert restored.get_seq_length() == 56
        assert all(torch.equal(one[1][:, :, :56], other[1]) for one, other in zip(cache, restored))
        assert prefix.save(tokens, cache) == prefix.restore(tokens).get_seq_length() == 96
        prefix._client.delete_many([names[2]])
        assert prefix.restore(tokens).get_seq_length() == 16


def test_what_differs_is_a_miss(keys: Target, model: Any) -> None:
    tokens = prompt(40)
    options: dict[str, Any] = {"chunk_tokens": CHUNK, "prefix": "differs/", "revision": "v1"}
    with nvlane.KeyValue(keys.address(1), **PATIENT) as client:
        assert CachedPrefix(client, model, **options).save(tokens, filled(model, tokens)) == 40
        for other, changes in [
            (tiny(seed=1), {}),
            (tiny(dtype=torch.bfloat16), {}),
            (tiny(rope_theta=1000.0), {}),
            (tiny(num_hidden_layers=2), {}),
            (model, {"revision": "v2"}),
            (model, {"revision": None}),
            (model, {"prefix": "others/"}),
            (model, {"chunk_tokens": 4}),
        ]:
            assert CachedPrefix(client, other, **options | changes).stored_tokens(tokens) == 0
        assert CachedPrefix(client, tiny(), **options).stored_tokens(tokens) == 32
        assert not client.closed


def test_what_cannot_be_saved_is_refused(keys: Target, model: Any) -> None:
    with nvlane.KeyValue(keys.address(1)) as client:
        prefix = CachedPrefix(client, model, chunk_tokens=CHUNK, prefix="refused/")
        tokens = prompt(20)
        static = transformers.StaticCache(config=model.config, max_cache_len=32)
        with torch.no_grad():
            model(tokens, cache=static)
        two = torch.cat([tokens, tokens])
        sliding = transformers.MistralForCausalLM(
            transformers.MistralConfig(
                vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, sliding_window=16,
            )  # fmt: skip
        )
        for call, words in [
            (lambda: prefix.save(tokens, static), "StaticCache"),
            (lambda: prefix.save(two, filled(model, tokens)), "2 sequences"),
            (lambda: prefix.save(tokens, filled(model, two)), "not of one sequence"),
            (lambda: prefix.save(tokens[:, :10], filled(model, tokens)), "cache has 20 tokens and input_ids 10"),
            (lambda: CachedPrefix(client, sliding), "DynamicSlidingWindowLayer"),
            (lambda: CachedPrefix(client, model, chunk_tokens=0), "chunk_tokens is 0"),
            (lambda: CachedPrefix(client, model, chunk_tokens=1 << 20), "values have at most"),
            (lambda: CachedPrefix(client, model, prefix="p" * 65), "65 bytes"),
        ]:
            with pytest.raises(ValueError, match=words):
                call()
        with pytest.raises(TypeError, match="lanes: options of a connection"):
            CachedPrefix(client, model, lanes=2)


def test_a_lost_target_restores_nothing(model: Any) -> None:
    target = Target("kv:ram:64M")
    prefix = CachedPrefix(target.address(1), model, chunk_tokens=CHUNK, timeout=5.0)
    tokens = prompt(40)
    cache = filled(model, tokens)
    assert prefix.save(tokens, cache) == 40
    target.kill()
    start = time.monotonic()
    assert prefix.restore(tokens).get_seq_length() == 0
    assert prefix.save(tokens, cache) == 0
    assert time.monotonic() - start < 40
    prefix.close()


@pytest.mark.parametrize(
    ("example", "options"), [("prompt_cache", []), ("time_to_first_token", ["--lengths", "64,96,200", "--repeat", "2"])]
)
def test_example(example: str, options: list[str], keys: Target) -> None:
    path = os.path.join(os.environ["NVLANE_EXAMPLES"], "torch", f"{example}.py")
    subprocess.run([sys.executable, path, keys.address(1), *options], check=True, timeout=300)
