"""What `tests/bench/kvpr` makes of a decode worker's metrics: how long steps of the whole batch took, and what the rates
that it measured allow."""

import re

TILE = 64  # l is a multiple of it

STEPS, SECONDS, SEQUENCES = (
    "runahead_decode_step_seconds_count",
    "runahead_decode_step_seconds_sum",
    "runahead_decode_batch_size_sum",
)


def values(text):
    """A process's /metrics as {series: value}."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {re.sub(r'device="\w+",?', "", name).replace("{}", ""): float(value) for name, value in lines}


def whole_batch(before, after, batch):
    """(steps, seconds) between two readings of the metrics; (0, 0) unless all steps were of `batch` sequences."""
    steps = after[STEPS] - before[STEPS]
    if steps <= 0 or after[SEQUENCES] - before[SEQUENCES] != steps * batch:
        return 0, 0.0
    return steps, after[SECONDS] - before[SECONDS]


def layer_seconds(rates, batch, length, l):
    """max(link, p + a + R) of a layer, docs/kvpr.md."""
    link = batch * (l * rates["x_bytes"] + (length - l) * rates["kv_bytes"]) / rates["link"]
    return max(link, rates["project"] + batch * (length * rates["attend"] + l * rates["recompute"]))


def predicted(rates, batch, length):
    """(l, gain over l = 0) with the best l."""
    best = min(range(0, length + 1, TILE), key=lambda l: layer_seconds(rates, batch, length, l))
    return best, layer_seconds(rates, batch, length, 0) / layer_seconds(rates, batch, length, best)
