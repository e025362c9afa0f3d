"""Key-value caches of transformers models on an NVMe/TCP target, found again by the beginning of a prompt.

    prefix = nvlane.transformers.CachedPrefix("192.0.2.1:4420/nqn.2026-01.com.example:cache", model)
    cache = prefix.restore(input_ids)                       # empty if nothing of the prompt is stored
    output = model.generate(input_ids, cache=cache)         # past_key_values=cache in versions before 5.23
    prefix.save(output, cache)

A prompt is divided into chunks of tokens. The key of a chunk contains all tokens up to its end, its value has the keys and values of
all layers: a prompt finds the longest beginning that any earlier prompt has in common with it. torch and transformers are
imported when CachedPrefix is first used.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import Error, KeyValue
from ._engines import checked_prefix, connect, identity, leading

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._nvlane import Options

__all__ = ["CachedPrefix"]

logger = logging.getLogger(__name__)

# Chunks are moved in groups of about so many bytes: memory is bounded, and several lanes are busy.
GROUP_BYTES = 256 << 20

# Elements of each parameter that identify a model's weights.
SAMPLES = 64


class CachedPrefix:
    """Saves and restores the cache of a model. One sequence at a time, and full attention in every layer: the layers of a
    transformers.DynamicCache that keep all tokens."""

    def __init__(
        self,
        client: str | KeyValue,
        model: Any,
        *,
        chunk_tokens: int = 256,
        revision: str | None = None,
        prefix: str = "",
        ttl: int = 0,
        **options: Unpack[Options],
    ) -> None:
        """Connects, unless client is a client.

        client: HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace, or an nvlane.KeyValue, which is not closed.
        model: the model whose caches are saved. Caches of a model with another configuration, data type, revision or with
            other weights (64 elements of each parameter are compared) are never restored.
        chunk_tokens: tokens of a chunk; only whole chunks are saved. All users of a cache need the same.
        revision: of the model, where it is known; by default that of the model's configuration.
        prefix: precedes every key, so that several caches share a namespace.
        ttl: seconds for which chunks are kept; 0 for ever, or until the target evicts them.
        options: those of nvlane.KeyValue; by default 4 lanes, commands that end 1 second after the target is lost, and 10
            seconds for each command.
        """
        if chunk_tokens < 1:
            raise ValueError(f"chunk_tokens is {chunk_tokens}: at least 1")
        self._model, self._chunk, self._ttl = model, chunk_tokens, ttl
        self._layers = _layers(model)
        same = identity(
            engine="transformers",
            config=_configuration(model),
            dtype=model.dtype,
            revision=revision if revision is not None else getattr(model.config, "_commit_hash", None),
            weights=_weights(model),
            chunk_tokens=chunk_tokens,
        )
        self._start = f"{checked_prefix(prefix)}transformers/{same}/"
        self._elements = sum(layer.heads * layer.size for layer in self._layers) * chunk_tokens
        self._client = connect(client, options)
        self._owns = self._client is not client
        limit = self._client.value_size_max
        if self._bytes() > limit:
            self.close()
            raise ValueError(f"chunk_tokens is {chunk_tokens}: {self._bytes()} bytes, and values have at most {limit}")

    def restore(self, input_ids: Any) -> Any:
        """A DynamicCache with the longest beginning of these tokens that is stored, but for the last token, of which a model
        needs the input: `get_seq_length()` of it is the number of tokens. If the target is lost, it is empty.

        input_ids: tokens of one sequence, of shape (tokens,) or (1, tokens), or a list of int.
        """
        tokens = _tokens(input_ids)
        names = self._names(tokens[: max(0, len(tokens) - 1)])
        try:
            names = names[: leading(self._client.exists_many(names))] if names else []
            return self._restored(names)
        except Error as error:
            logger.warning("%s: %s; nothing is restored", self._client.address, error)
            return self._restored([])

    def save(self, input_ids: Any, cache: Any) -> int:
        """Saves the chunks that are not stored yet. Returns for how many tokens the cache is stored now.

        input_ids: the tokens whose keys and values the cache has, of shape (tokens,) or (1, tokens), or a list of int; more
            of them than the cache has, such as the last one that generate returns, are ignored.
        cache: a DynamicCache, as the model has filled it. If the target is lost, nothing is saved.
        """
        tokens = _tokens(input_ids)
        count = cache.get_seq_length()
        if count > len(tokens):
            raise ValueError(f"cache has {count} tokens and input_ids {len(tokens)}: pass those of the cache")
        names = self._names(tokens[:count])
        if not names:
            return 0
        try:
            stored = self._client.exists_many(names)
            missing = [index for index, is_stored in enumerate(stored) if not is_stored]
            states = list(itertools.chain.from_iterable(_states(cache)))
            for start in range(0, len(missing), self._group()):
                group = missing[start : start + self._group()]
                values = self._copies(states, group)
                self._client.set_many([names[index] for index in group], values, ttl=self._ttl)
        except Error as error:
            logger.warning("%s: %s; not all is saved", self._client.address, error)
            return 0
        return len(names) * self._chunk

    @property
    def argument(self) -> str:
        """The name under which the model takes a cache: cache, or past_key_values in versions before 5.23."""
        return _argument(self._model)

    def stored_tokens(self, input_ids: Any) -> int:
        """How many tokens `restore` would find."""
        tokens = _tokens(input_ids)
        names = self._names(tokens[: max(0, len(tokens) - 1)])
        return leading(self._client.exists_many(names)) * self._chunk if names else 0

    def close(self) -> None:
        """Ends the connection, unless the client was given. Closing again does nothing."""
        if self._owns:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _names(self, tokens: Sequence[int]) -> list[str]:
        """The key of each whole chunk, which depends on all tokens up to its end."""
        names = []
        chain = hashlib.blake2b(digest_size=32)
        for start in range(0, len(tokens) - self._chunk + 1, self._chunk):
            chunk = tokens[start : start + self._chunk]
            chain.update(b"".join(token.to_bytes(8, "little", signed=True) for token in chunk))
            names.append(self._start + chain.hexdigest())
        return names

    def _bytes(self) -> int:
        """Bytes of a chunk."""
        return self._elements * int(self._layers[0].dtype.itemsize)

    def _group(self) -> int:
        """Chunks that are moved together."""
        return max(1, GROUP_BYTES // self._bytes())

    def _staging(self, count: int) -> tuple[Any, list[Any]]:
        """Host memory for chunks, as a tensor and as buffers: each has the keys of the first layer, (heads, tokens, elements of
        a head), then its values, and so on."""
        import torch  # type: ignore[import-not-found]

        is_pinned = any(layer.device.type == "cuda" for layer in self._layers)
        tensor = torch.empty(count, self._elements, dtype=self._layers[0].dtype, pin_memory=is_pinned)
        return tensor, list(tensor.view(torch.uint8).numpy())

    def _copies(self, states: list[Any], chunks: list[int]) -> list[Any]:
        """Chunks of keys and values, in host memory."""
        import torch

        tensor, buffers = self._staging(len(chunks))
        for row, chunk in zip(tensor, chunks):
            start = chunk * self._chunk
            pieces = [state[0, :, start : start + self._chunk].reshape(-1) for state in states]
            row.copy_(torch.cat([piece.to(pieces[0].device) for piece in pieces]))
        return buffers

    def _restored(self, names: list[str]) -> Any:
        """The cache of the first of these chunks that are there."""
        import torch
        from transformers import DynamicCache  # type: ignore[import-not-found]

        states = [
            torch.empty(1, layer.heads, len(names) * self._chunk, layer.size, dtype=layer.dtype, device=layer.device)
            for layer in self._layers
        ]
        count = 0
        while count < len(names):
            group = names[count : count + self._group()]
            tensor, buffers = self._staging(len(group))
            found = self._client.get_many_into(group, buffers)
            there = leading(found)
            # One transfer to a device: pieces of rows would be copied once more before.
            rows = tensor[:there].to(self._layers[0].device)
            start = 0
            for layer, state in zip(self._layers, states):
                end = start + layer.heads * layer.size * self._chunk
                chunks = rows[:, start:end].to(layer.device).view(there, layer.heads, self._chunk, layer.size)
                tokens = slice(count * self._chunk, (count + there) * self._chunk)
                state[0, :, tokens] = chunks.transpose(0, 1).reshape(layer.heads, there * self._chunk, layer.size)
                start = end
            count += there
            if there < len(group):
                unusable = [name for name, is_found in zip(group, found) if is_found is False]
                if unusable:
                    # They would never be saved again.
                    self._client.delete_many(unusable)
                break
        cache = DynamicCache(config=self._model.config)
        for index in range(len(states) // 2 if count else 0):
            keys, values = (state[:, :, : count * self._chunk] for state in states[2 * index : 2 * index + 2])
            cache.update(keys, values, index)
        return cache


class _Layer:
    """The form of the keys of a layer, or of its values."""

    def __init__(self, state: Any) -> None:
        self.heads, self.size = int(state.shape[1]), int(state.shape[3])
        self.dtype, self.device = state.dtype, state.device


def _layers(model: Any) -> list[_Layer]:
    """The form of keys and values of each layer, as the model makes them for one token."""
    import torch
    from transformers import DynamicCache

    rope = getattr(model.config, "rope_parameters", None) or getattr(model.config, "rope_scaling", None) or {}
    for part in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        kind = part.get("rope_type", part.get("type"))
        if kind in ("dynamic", "longrope"):
            raise ValueError(f"model: keys of its rotary embedding ({kind}) depend on the length of the prompt")
    with torch.no_grad():
        token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        cache = DynamicCache(config=model.config)
        model(token, use_cache=True, **{_argument(model): cache})
    layers = [_Layer(state) for states in _states(cache) for state in states]
    if len({layer.dtype for layer in layers}) != 1:
        raise ValueError("model: its cache has states of several data types")
    return layers


def _argument(model: Any) -> str:
    """The name of the argument that takes a cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _states(cache: Any) -> list[tuple[Any, Any]]:
    """Keys and values of each layer, of shape (1, heads, tokens, elements of a head)."""
    from transformers.cache_utils import DynamicCache, DynamicLayer  # type: ignore[import-not-found]

    if not isinstance(cache, DynamicCache):
        raise ValueError(f"a cache is {type(cache).__name__}: only DynamicCache is saved")
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise ValueError(f"a layer of the cache is {type(layer).__name__}: only full attention is saved")
        if layer.keys is None or layer.keys.ndim != 4 or layer.keys.shape[0] != 1:
            raise ValueError("the cache is not of one sequence")
    return [(layer.keys, layer.values) for layer in cache.layers]


def _tokens(input_ids: Any) -> list[int]:
    """Token numbers of one sequence."""
    tokens = input_ids.tolist() if hasattr(input_ids, "tolist") else list(input_ids)
    if tokens and isinstance(tokens[0], list):
        if len(tokens) != 1:
            raise ValueError(f"input_ids has {len(tokens)} sequences: one at a time")
        tokens = tokens[0]
    return tokens


def _configuration(model: Any) -> dict[str, Any]:
    """The configuration without what does not change results."""
    fields = dict(model.config.to_dict())
    for name in ("_name_or_path", "transformers_version"):
        fields.pop(name, None)
    return fields


def _weights(model: Any) -> str:
    """Digest of some elements of each parameter."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} ".encode())
        elements = parameter.detach().reshape(-1)
        if elements.device.type != "meta":
            some = elements[:: max(1, len(elements) // SAMPLES)][:SAMPLES]
            digest.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
