"""A plain Llama in PyTorch with random weights, for torch_side.py."""
import contextlib
import dataclasses

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

GROUPED = "enable_gqa" in F.scaled_dot_product_attention.__doc__  # older ones get K and V repeated


@dataclasses.dataclass
class Shape:
    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float

    def products(self):
        """(name, rows, columns) of a layer's weights."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [("qkv", query + 2 * kv, self.hidden), ("output", self.hidden, query),
                ("gate_up", 2 * self.ffn, self.hidden), ("down", self.hidden, self.ffn)]

    def weights(self):
        return sum(rows * cols for _, rows, cols in self.products())


LLAMA_7B = Shape("llama-7b", 4096, 32, 32, 128, 11008, 32000, 1e4)
LLAMA_3_8B = Shape("llama-3-8b", 4096, 32, 8, 128, 14336, 128256, 5e5)
TINY = Shape("tiny", 128, 4, 2, 32, 192, 320, 1e4)


def attend(q, k, v, backend, causal=False, mask=None):
    """q: [batch, tokens, heads, head_dim]; k and v with their own heads. RuntimeError where the backend cannot."""
    grouped = {}
    if k.shape[2] != q.shape[2] and GROUPED:
        grouped = {"enable_gqa": True}
    elif k.shape[2] != q.shape[2]:
        k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    with sdpa_kernel([backend]) if q.is_cuda else contextlib.nullcontext():
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask,
                                             is_causal=causal, **grouped)
    return out.transpose(1, 2)


class Llama:
    """`bench` draws the weights."""

    def __init__(self, bench, shape):
        self.shape, self.device, self.dtype = shape, bench.device, bench.dtype
        self.embedding = bench.random(shape.vocab, shape.hidden, deviation=shape.hidden ** -0.5)
        self.head = bench.random(shape.vocab, shape.hidden, deviation=shape.hidden ** -0.5)
        self.norm = torch.ones(shape.hidden, device=bench.device, dtype=bench.dtype)
        self.layers = [{name: bench.random(rows, cols, deviation=cols ** -0.5) for name, rows, cols in shape.products()}
                       for _ in range(bench.layers)]

    def rotation(self, positions):
        half = self.shape.head_dim // 2
        powers = torch.arange(half, device=self.device, dtype=torch.float32) / half
        angles = positions.to(torch.float32)[:, None] / self.shape.rope_base ** powers
        angles = torch.cat([angles, angles], -1)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    @staticmethod
    def rotate(x, rotation):
        cos, sin = rotation
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def rms_norm(self, x):
        return F.rms_norm(x, (self.shape.hidden,), self.norm, 1e-5)

    def qkv(self, layer, x, rotation):
        """x: [rows, hidden]; Q, K, V as [rows, heads, head_dim]."""
        s = self.shape
        qkv = F.linear(self.rms_norm(x), layer["qkv"]).view(x.shape[0], s.heads + 2 * s.kv_heads, s.head_dim)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], 1)
        return self.rotate(q, rotation), self.rotate(k, rotation), v

    def rest(self, layer, x, attended):
        x = x + F.linear(attended.reshape(x.shape[0], -1), layer["output"])
        gate, up = F.linear(self.rms_norm(x), layer["gate_up"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer["down"])

    def prompt(self, ids, rotation, layers, backend):
        x = F.embedding(ids, self.embedding)
        cache = []
        for index, layer in enumerate(self.layers[:layers]):
            q, k, v = self.qkv(layer, x, rotation)
            cache.append((k, v))
            last = index + 1 == layers
            if last:  # from here on it matters to the last token only
                x, q = x[-1:], q[-1:]
            attended = attend(q[None], k[None], v[None], SDPBackend.FLASH_ATTENTION if last else backend, not last)
            x = self.rest(layer, x, attended)
        return F.linear(self.rms_norm(x), self.head), cache

    def step(self, ids, rotation, caches, layers):
        """A token for each sequence; caches: per layer K and V [batch, context, kv_heads, head_dim], the last row is ours."""
        x = F.embedding(ids, self.embedding)
        for layer, (keys, values) in zip(self.layers[:layers], caches):
            q, k, v = self.qkv(layer, x, rotation)
            keys[:, -1].copy_(k)
            values[:, -1].copy_(v)
            x = self.rest(layer, x, attend(q[:, None], keys, values, SDPBackend.FLASH_ATTENTION))
        return F.linear(self.rms_norm(x), self.head)
