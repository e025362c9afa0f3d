"""Compares restoring the beginning of a prompt with computing it: python time_to_first_token.py HOST:PORT/NQN?ns=1 [OPTIONS]

For each length a prompt is computed and its cache saved; then the time until the first token is measured with all of it computed,
and with its beginning restored from the target and the rest computed, by turns. Checks that every byte of the restored cache is
equal, and that the token is the same. Weights are random: neither changes how long a token takes. For a model of the size of
Llama-3.1-8B on a GPU:

    python time_to_first_token.py ADDRESS --device cuda --dtype bfloat16 --layers 32 --hidden 4096 --intermediate 14336 \\
        --heads 32 --kv-heads 8 --vocabulary 128256 --lengths 512,1024,2048,4096,8192,16384,32768
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from nvlane.transformers import CachedPrefix

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("address", help="HOST[:PORT]/NQN[?ns=NSID] of a key-value namespace")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--dtype", default="float32", help="data type of weights and cache (default: float32)")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--intermediate", type=int, default=688)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--kv-heads", type=int, default=2)
parser.add_argument("--vocabulary", type=int, default=1024)
parser.add_argument("--lengths", default="64,128,256,512,1024", help="tokens of the prompts (default: %(default)s)")
parser.add_argument("--chunk-tokens", type=int, default=32, help="tokens of a stored value (default: %(default)s)")
parser.add_argument("--repeat", type=int, default=5, help="measurements of each, of which the median is printed")
parser.add_argument("--lanes", type=int, default=4, help="connections of the client (default: %(default)s)")
parser.add_argument("--json", metavar="FILE", help="writes the results to this file, too")
options = parser.parse_args()
lengths = sorted(int(length) for length in options.lengths.split(","))
if lengths[0] <= options.chunk_tokens:
    parser.error(f"--lengths: {lengths[0]} tokens: more than the {options.chunk_tokens} of --chunk-tokens")

torch.manual_seed(1)
torch.set_default_dtype(getattr(torch, options.dtype))
with torch.device(options.device):
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=options.vocabulary,
            hidden_size=options.hidden,
            intermediate_size=options.intermediate,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=options.kv_heads,
            max_position_embeddings=lengths[-1] + 1,
        )
    ).eval()
torch.set_default_dtype(torch.float32)


def synchronize() -> None:
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()


@torch.no_grad()
def first_token(tokens: torch.Tensor, cache: transformers.DynamicCache) -> torch.Tensor:
    """The next token, computed from those that the cache does not have."""
    rest = tokens[:, cache.get_seq_length() :]
    return model(rest, use_cache=True, logits_to_keep=1, **{prefix.argument: cache}).logits[0, -1].argmax()


def timed(call):
    synchronize()
    start = time.perf_counter()
    result = call()
    synchronize()
    return time.perf_counter() - start, result


def empty() -> transformers.DynamicCache:
    return transformers.DynamicCache(config=model.config)


rows = []
with CachedPrefix(
    options.address,
    model,
    chunk_tokens=options.chunk_tokens,
    prefix="first-token/",
    lanes=options.lanes,
    # Nothing is to be measured without the target.
    fast_io_fail=60.0,
    timeout=60.0,
) as prefix:
    print(f"{options.device}, {options.dtype}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'tokens':>8} {'MiB':>9} {'restored':>9} {'computed ms':>12} {'from nvlane ms':>15} {'load ms':>9} {'GB/s':>6}")
    for length in lengths:
        tokens = torch.randint(1, options.vocabulary, (1, length), device=options.device)
        computed = empty()
        wanted = first_token(tokens, computed)
        prefix.save(tokens, computed)
        restored = prefix.restore(tokens)
        count = restored.get_seq_length()
        assert count >= length - options.chunk_tokens, f"{count} of {length} tokens restored"
        size = 0
        for index, (keys, values, *_) in enumerate(restored):
            for part, whole in ((keys, computed.layers[index].keys), (values, computed.layers[index].values)):
                assert torch.equal(part.view(torch.uint8), whole[:, :, :count].contiguous().view(torch.uint8))
                size += part.numel() * part.element_size()
        assert first_token(tokens, restored) == wanted
        del computed, restored
        compute, load, both = [], [], []
        for _ in range(options.repeat):
            compute.append(timed(lambda: first_token(tokens, empty()))[0])
            seconds, cache = timed(lambda: prefix.restore(tokens))
            rest, token = timed(lambda: first_token(tokens, cache))
            assert token == wanted
            load.append(seconds)
            both.append(seconds + rest)
            del cache
        row = {
            "tokens": length,
            "bytes": size,
            "restored_tokens": count,
            "computed_s": statistics.median(compute),
            "restored_s": statistics.median(both),
            "load_s": statistics.median(load),
        }
        rows.append(row)
        print(
            f"{length:8} {size / 2**20:9.1f} {count:9} {row['computed_s'] * 1e3:12.2f} {row['restored_s'] * 1e3:15.2f} "
            f"{row['load_s'] * 1e3:9.2f} {size / row['load_s'] / 1e9:6.2f}",
            flush=True,
        )

# From where on restoring is faster at all measured lengths; between two of them by a straight line.
gains = [row["computed_s"] - row["restored_s"] for row in rows]
last_loss = max((index for index, gain in enumerate(gains) if gain <= 0), default=-1)
if last_loss == len(rows) - 1:
    break_even = None
    print(f"restoring is not faster up to {lengths[-1]} tokens")
elif last_loss < 0:
    break_even = float(lengths[0])
    print(f"restoring is faster from the shortest prompt on ({lengths[0]} tokens)")
else:
    (below, above), loss, gain = lengths[last_loss : last_loss + 2], gains[last_loss], gains[last_loss + 1]
    break_even = below + (above - below) * -loss / (gain - loss)
    print(f"break-even length: {break_even:.0f} tokens")
print("every byte of the restored caches was equal, and every first token")
if options.json:
    with open(options.json, "w") as file:
        json.dump({"options": vars(options), "rows": rows, "break_even_tokens": break_even}, file, indent=2)
