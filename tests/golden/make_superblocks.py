#!/usr/bin/env python3
"""Writes data/superblocks.json: random blocks of the K types and the IQ4 types, and their values as the gguf package
makes them. Runs in a Python that has the packages of requirements.txt."""

import json
import os

import gguf
import numpy

TYPES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}


def main():
    random = numpy.random.default_rng(15)
    found = {}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (512 // elements, size), dtype=numpy.uint8)
        for at in HALVES[name]:  # any bytes are a block, but its halves are to be of a sensible size
            halves = random.uniform(-2, 2, len(blocks)).astype(numpy.float16)
            blocks[:, at:at + 2] = halves.view(numpy.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks, kind).astype(numpy.float32).reshape(-1)
        found[name] = {"blocks": blocks.tobytes().hex(), "values": [float(v) for v in values]}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data/superblocks.json")
    with open(path, "w") as f:
        json.dump(found, f)
        f.write("\n")


if __name__ == "__main__":
    main()
