"""Perplexity of a text when its KV is kept in fewer bits, by transformers and a quantisation of its own.

The quantisation is written from the description of KvQuant (kernels/base/op_params.h), not from its code.
"""

import os

import torch
from transformers import DynamicCache

TEXT = "perplexity.txt"
PROMPT_TOKENS = 300
SCORED_TOKENS = 200
GROUP = 64  # what a worker takes where K of a token is whole groups of 64
F16_LARGEST = 65504.0


def quantised(rows, bits):
    """What rows of finite values, the groups of each in its last dimension, read back as."""
    groups = rows.reshape(-1, GROUP).clamp(-F16_LARGEST, F16_LARGEST)
    minimum = groups.min(dim=1, keepdim=True).values
    levels = 2**bits - 1
    scale = ((groups.max(dim=1, keepdim=True).values - minimum) / levels).half().float()
    minimum = minimum.half().float()
    codes = torch.where(scale > 0, (groups - minimum) / scale, 0.0).round().clamp(0, levels)  # halves to even
    return (minimum + codes * scale).reshape(rows.shape)


class KeptCache(DynamicCache):
    """KV in `bits` bits, or as it is with 16. Rows are quantised as they come once `keeping`, those before by keep()."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits
        self.keeping = False

    def _kept(self, heads):
        """Of [1, heads, tokens, head size] of K or V; a row is all heads of a token, one after the other."""
        if self.bits == 16:
            return heads
        _, count, tokens, size = heads.shape
        # Whole heads only: the engine has the halves of a rotated head as interleaved pairs, another order of the same.
        if GROUP % size or count * size % GROUP:
            raise ValueError(f"{count} heads of {size} are not groups of {GROUP} of whole heads")
        rows = quantised(heads.transpose(1, 2).reshape(tokens, count * size), self.bits)
        return rows.reshape(1, tokens, count, size).transpose(1, 2)

    def keep(self):
        self.key_cache = [self._kept(k) for k in self.key_cache]
        self.value_cache = [self._kept(v) for v in self.value_cache]
        self.keeping = True

    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):
        """K comes rotated. What this returns is attended to, the new row as it is kept."""
        if self.keeping:
            key_states, value_states = self._kept(key_states), self._kept(value_states)
        return super().update(key_states, value_states, layer_idx, cache_kwargs)


def _perplexity(rows, ids):
    return torch.nn.functional.cross_entropy(torch.stack(rows), torch.tensor(ids)).exp().item()


@torch.no_grad()
def decoded_perplexity(model, prompt, forced, bits):
    """Of forced[1:], each by the step on the token before it; the prompt is prefilled without quantisation."""
    cache = KeptCache(bits)
    model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    cache.keep()
    rows = [model(input_ids=torch.tensor([[i]]), past_key_values=cache, use_cache=True).logits[0, -1] for i in forced[:-1]]
    return _perplexity(rows, forced[1:])


@torch.no_grad()
def perplexity(checkpoint, folder):
    """perplexity.json, of the first tokens of the text in `folder`."""
    with open(os.path.join(folder, TEXT)) as f:
        ids = checkpoint.tokenizer(special=False).encode(f.read()).ids
    ids = ids[: PROMPT_TOKENS + 1 + SCORED_TOKENS]
    prompt, forced = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
    model = checkpoint.model()
    perplexities = {bits: decoded_perplexity(model, prompt, forced, bits) for bits in (16, 8, 4)}
    # The same from one pass over everything: the cached steps must not have gone astray.
    whole = _perplexity(list(model(input_ids=torch.tensor([ids])).logits[0, PROMPT_TOKENS:-1]), forced[1:])
    if abs(whole - perplexities[16]) > 1e-4 * whole:
        raise ValueError(f"perplexity step by step is {perplexities[16]}, at once {whole}")
    print(f"perplexity of {len(forced) - 1} tokens after {len(prompt)}: {perplexities}")
    return {
        "text": TEXT,
        "group": GROUP,
        "ids": {"prompt": prompt, "forced": forced},
        "perplexity": {str(bits): round(value, 5) for bits, value in perplexities.items()},
    }
