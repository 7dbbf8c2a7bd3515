#!/usr/bin/env python3
"""What build/bench/gpu measures, in PyTorch: the same shapes, layers and random weights, the same lines of JSON.

A plain Llama (torch_llama.py): RMSNorm, one product for Q, K and V, rotary embedding, scaled_dot_product_attention in PyTorch's fused
backends, SwiGLU; eager mode, and CUDA graphs for decode steps. Like ours, a prompt's pass keeps K and V of every layer
and computes the last layer's attention and MLP for the last token only.

usage: torch_side.py [--dtype bf16|f16|f32] [--seconds S] [--layers N] [--cpu] [--tiny] gemm|attention|prefill|decode|all...
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.nn.attention.bias import causal_lower_right

from torch_llama import LLAMA_3_8B, LLAMA_7B, TINY, Llama, attend

WHOLE_LAYERS = 32
LEAST_ROUNDS = 5
LEAST_RUN = 0.01  # seconds: what waiting takes is small beside it
WARM_UPS = 5


class Bench:
    """Options, the device, and how it is timed and reported."""

    def __init__(self, args):
        self.tiny, self.layers, self.seconds, self.dtype_name = args.tiny, args.layers, args.seconds, args.dtype
        self.cuda = not args.cpu
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[args.dtype]
        self.models = [TINY] if args.tiny else [LLAMA_7B, LLAMA_3_8B]
        self.backends = [SDPBackend.FLASH_ATTENTION]
        if self.cuda and hasattr(SDPBackend, "CUDNN_ATTENTION"):
            self.backends.append(SDPBackend.CUDNN_ATTENTION)

    def size(self, size, shrink=256):
        return max(1, size // shrink) if self.tiny else size

    def random(self, *shape, deviation=1.0):
        return torch.randn(*shape, device=self.device, dtype=self.dtype) * deviation

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def run(self, work, repeats):
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        self.wait()
        return time.perf_counter() - begin

    def time(self, works):
        """Medians and spreads of one call of each: warm, in turn, as the other side does it."""
        repeats = []
        for work in works:
            self.wait()
            begin = time.perf_counter()
            for i in range(WARM_UPS):
                if i >= 2 and time.perf_counter() - begin > self.seconds:
                    break
                last = self.run(work, 1)
            repeats.append(max(1, math.ceil(min(LEAST_RUN, self.seconds / LEAST_ROUNDS) / last)))
        runs = [[] for _ in works]
        begin = time.perf_counter()
        while len(runs[0]) < LEAST_ROUNDS or time.perf_counter() - begin < self.seconds * len(works):
            for i, work in enumerate(works):
                runs[i].append(self.run(work, repeats[i]) / repeats[i])
        return [timing_of(values, count) for values, count in zip(runs, repeats)]

    def say(self, suite, model, shape, what, value, unit, timing=None, **more):
        line = {"side": "pytorch", "suite": suite, "model": model, "shape": shape, "what": what, "value": value,
                "unit": unit, "dtype": self.dtype_name, **(timing or {}), **more}
        print(json.dumps(line), flush=True)


def timing_of(values, repeats):
    median = statistics.median(values)
    spread = statistics.median(abs(value - median) for value in values)
    return {"median": median, "spread": spread, "runs": len(values), "repeats": repeats}


def layer_timing(full, half, layers):
    """Of one layer more; where noise hides it, its share of the whole."""
    more = layers - layers // 2
    timing = dict(full, median=(full["median"] - half["median"]) / more, spread=(full["spread"] + half["spread"]) / more)
    if timing["median"] <= 0:
        timing["median"] = full["median"] / layers
    return timing


def product_works(bench, model, rows):
    """A layer's products one by one, and all four; each call of the next layer's weights."""
    x = {cols: bench.random(rows, cols) for _, _, cols in model.shape.products()}
    turn = [0]

    def product(name, cols):
        turn[0] = (turn[0] + 1) % len(model.layers)
        return F.linear(x[cols], model.layers[turn[0]][name])

    def all_four():
        turn[0] = (turn[0] + 1) % len(model.layers)
        for name, _, cols in model.shape.products():
            F.linear(x[cols], model.layers[turn[0]][name])

    works = [lambda name=name, cols=cols: product(name, cols) for name, _, cols in model.shape.products()]
    return works + [all_four]


def bench_gemm(bench):
    for shape in bench.models:
        model = Llama(bench, shape)
        for rows in map(bench.size, (2048, 4096, 8192)):
            timings = bench.time(product_works(bench, model, rows))
            names = [(name, 2 * n * k * rows) for name, n, k in shape.products()]
            for (name, flops), timing in zip(names + [("all four", 2 * shape.weights() * rows)], timings):
                bench.say("gemm", shape.name, f"m={rows}", name, flops / timing["median"] / 1e12, "TFLOP/s", timing)


def pairs(queries, length):
    return queries * length - queries * (queries - 1) / 2


def bench_attention(bench):
    problems = [(2048, 2048, False), (8192, 8192, False), (32768, 32768, False), (2048, 8192, False),
                (4096, 32768, False), (8192, 8192, True)]
    for kv_heads in (32, 8):
        heads, head_dim = 32, 128
        if bench.tiny:
            heads, kv_heads, head_dim = 4, max(1, min(kv_heads // 4, 4)), 32
        for queries, length, dense in problems:
            queries, length = bench.size(queries), bench.size(length)
            q = bench.random(1, queries, heads, head_dim)
            k, v = (bench.random(1, length, kv_heads, head_dim) for _ in range(2))
            mask = None if dense or queries == length else causal_lower_right(queries, length)
            flops = 4 * heads * head_dim * (queries * length if dense else pairs(queries, length))
            # Only flash attention knows a causal mask that ends at the lower right corner.
            for backend in bench.backends if mask is None else bench.backends[:1]:
                named = dict(suite="attention", model=f"heads {heads}/{kv_heads}", shape=f"q={queries} kv={length}",
                             what="dense rectangle" if dense else "causal", unit="TFLOP/s", backend=backend.name)
                try:
                    [timing] = bench.time([lambda: attend(q, k, v, backend, not dense and mask is None, mask)])
                    bench.say(**named, value=flops / timing["median"] / 1e12, timing=timing)
                except (RuntimeError, ValueError) as error:
                    bench.say(**named, value=None, note=f"not measured: {str(error).splitlines()[0]}")


def bench_prefill(bench):
    for shape in bench.models:
        model = Llama(bench, shape)
        for tokens in map(bench.size, (2048, 8192, 32768)):
            ids = torch.arange(tokens, device=bench.device) * 7919 % shape.vocab
            rotation = model.rotation(torch.arange(tokens, device=bench.device))
            peaks = [(rows, product_works(bench, model, rows)[-1]) for rows in map(bench.size, (2048, 4096, 8192))
                     if rows <= tokens]
            for backend in bench.backends:
                works = [lambda layers=layers: model.prompt(ids, rotation, layers, backend)
                         for layers in (bench.layers, bench.layers // 2)]
                named = dict(suite="prefill", model=shape.name, shape=f"tokens={tokens}", backend=backend.name)
                try:
                    full, half, *products = bench.time(works + [work for _, work in peaks])
                except RuntimeError as error:
                    bench.say(**named, what=f"{bench.layers} layers, measured", value=None, unit="tokens/s",
                              note=f"not measured: {str(error).splitlines()[0]}")
                    continue
                peak = max(2 * shape.weights() * rows / timing["median"] for (rows, _), timing in zip(peaks, products))
                layer = layer_timing(full, half, bench.layers)
                whole = full["median"] + (WHOLE_LAYERS - bench.layers) * layer["median"]
                flops = 2 * shape.weights() * tokens + 4 * shape.heads * shape.head_dim * pairs(tokens, tokens)
                bench.say(**named, what=f"{bench.layers} layers, measured", value=tokens / full["median"],
                          unit="tokens/s", timing=full)
                bench.say(**named, what=f"{WHOLE_LAYERS} layers, scaled", value=tokens / whole, unit="tokens/s")
                bench.say(**named, what="layer", value=layer["median"] * 1e3, unit="ms", timing=layer)
                bench.say(**named, what="share of the GEMM peak", value=flops / layer["median"] / peak, unit="ratio",
                          peak_tflops=peak / 1e12)


def graph_of(bench, step):
    """The step as a CUDA graph; as it is without a GPU."""
    if not bench.cuda:
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def bench_step(bench, model, batch, context, bandwidth):
    shape, layers = model.shape, bench.layers
    ids = torch.arange(batch, device=bench.device) * 7919 % shape.vocab
    rotation = model.rotation(torch.full((batch,), context - 1, device=bench.device))
    caches = [tuple(bench.random(batch, context, shape.kv_heads, shape.head_dim) for _ in range(2))
              for _ in range(layers)]

    def awaited(step):
        return lambda: (step(), bench.wait())

    eager, fewer = (lambda depth=depth: model.step(ids, rotation, caches, depth) for depth in (layers, layers // 2))
    graph, half = graph_of(bench, eager), graph_of(bench, fewer)
    full, plain, queued, half = bench.time([awaited(graph), awaited(eager), graph, awaited(half)])
    layer = layer_timing(full, half, layers)
    size = torch.tensor([], dtype=bench.dtype).element_size()
    layer_bytes = size * (shape.weights() + 2 * batch * context * shape.kv_heads * shape.head_dim)
    total = layers * layer_bytes + size * shape.vocab * shape.hidden
    named = dict(suite="decode", model=shape.name, shape=f"batch={batch} context={context}")
    bench.say(**named, what=f"step, {layers} layers", value=full["median"] * 1e3, unit="ms", timing=full, bytes=total)
    bench.say(**named, what="step without graphs", value=plain["median"] * 1e3, unit="ms", timing=plain)
    bench.say(**named, what="steps queued", value=queued["median"] * 1e3, unit="ms", timing=queued)
    bench.say(**named, what="share of bandwidth", value=total / full["median"] / bandwidth, unit="ratio")
    bench.say(**named, what="layer", value=layer["median"] * 1e3, unit="ms", timing=layer, bytes=layer_bytes)
    bench.say(**named, what="share of bandwidth, layer", value=layer_bytes / layer["median"] / bandwidth, unit="ratio")
    bench.say(**named, what=f"step, {WHOLE_LAYERS} layers, scaled", unit="ms",
              value=(full["median"] + (WHOLE_LAYERS - layers) * layer["median"]) * 1e3)


def bench_decode(bench):
    count = bench.size(2 << 30)
    source = torch.randint(0, 256, (count,), device=bench.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    [copy] = bench.time([lambda: target.copy_(source)])
    del source, target
    bandwidth = 2 * count / copy["median"]
    bench.say("decode", "-", f"{count >> 20} MiB", "copy inside the device's memory", bandwidth / 1e9, "GB/s", copy)
    for shape in bench.models:
        model = Llama(bench, shape)
        for context in (1024, 4096):
            for batch in (1, 32, 128):
                batch_size, length = bench.size(batch, 32), bench.size(context, 8)
                try:
                    bench_step(bench, model, batch_size, length, bandwidth)
                except torch.cuda.OutOfMemoryError as error:
                    bench.say("decode", shape.name, f"batch={batch_size} context={length}", "step", None, "ms",
                              note=f"not measured: {str(error).splitlines()[0]}")
                if bench.cuda:
                    torch.cuda.empty_cache()


SUITES = {"gemm": bench_gemm, "attention": bench_attention, "prefill": bench_prefill, "decode": bench_decode}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", choices=[*SUITES, "all"])
    parser.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16")
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring for each figure")
    parser.add_argument("--layers", type=int, default=4, help="of the models; half as many are run too")
    parser.add_argument("--cpu", action="store_true", help="to see that it runs; with --tiny")
    parser.add_argument("--tiny", action="store_true", help="sizes that any machine computes at once")
    args = parser.parse_args()
    if not 2 <= args.layers <= WHOLE_LAYERS or args.seconds <= 0:
        parser.error(f"--layers: 2 to {WHOLE_LAYERS}; --seconds: above 0")
    if not args.cpu and not torch.cuda.is_available():
        sys.exit("torch_side.py: PyTorch sees no GPU")
    torch.manual_seed(1)
    bench = Bench(args)
    name = "cpu" if args.cpu else torch.cuda.get_device_name()
    print(json.dumps({"side": "pytorch", "suite": "device", "device": f"{name}, PyTorch {torch.__version__}",
                      "dtype": args.dtype, "layers": args.layers, "seconds": args.seconds}), flush=True)
    with torch.inference_mode():
        for suite, run in SUITES.items():
            if suite in args.suites or "all" in args.suites:
                run(bench)


if __name__ == "__main__":
    main()
