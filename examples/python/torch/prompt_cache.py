"""Restores the beginning of a prompt instead of computing it: python prompt_cache.py HOST:PORT/NQN?ns=1

With a model of random weights; load your own with `transformers.AutoModelForCausalLM.from_pretrained`.
"""

import sys

import torch
import transformers
from nvlane.transformers import CachedPrefix

torch.manual_seed(1)
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4
)
model = transformers.LlamaForCausalLM(config).eval()
system = torch.randint(1, 256, (1, 200))
with CachedPrefix(sys.argv[1], model, chunk_tokens=32, prefix="example/") as prefix:
    for question in (torch.randint(1, 256, (1, 20)) for _ in range(3)):
        tokens = torch.cat([system, question], 1)
        cache = prefix.restore(tokens)
        found = cache.get_seq_length()
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=8,
            do_sample=False,
            # cache=cache, or past_key_values=cache in versions before 5.23
            **{prefix.argument: cache},
        )
        saved = prefix.save(output, cache)
        print(f"{tokens.shape[1]} tokens, {found} of them restored, {saved} saved: {output[0, tokens.shape[1]:].tolist()}")
