#!/usr/bin/env python3
"""Makes data/scores.json: the log probability of every token of a text, by transformers in float32. Run by hand; see README.md."""

import argparse
import json
import os
import subprocess
import tempfile

import torch
from checkpoint import Checkpoint, sha256
from inputs import SCORED

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
TEXT = "perplexity.txt"
TEXT_TOKENS = 501
TINY_TOKENS = 129
LIKELIEST = 3


@torch.no_grad()
def scored(model, ids):
    """Of each token but the first: its log probability, the largest magnitude of a logit there, the likeliest tokens."""
    rows = model(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    logprobs = rows.log_softmax(-1)
    scores = []
    for row, given, token in zip(rows, logprobs, ids[1:]):
        top = given.topk(LIKELIEST)
        likeliest = [[int(i), round(float(v), 6)] for v, i in zip(top.values, top.indices)]
        scores.append([round(float(given[token]), 6), round(float(row.abs().max()), 4), likeliest])
    return {"ids": ids, "scores": scores}


def quick_start(path):
    checkpoint = Checkpoint(path)
    with open(os.path.join(DATA, TEXT)) as f:
        ids = checkpoint.tokenizer(special=False).encode(f.read()).ids[:TEXT_TOKENS]
    return {"flags": [], "sha256": sha256(path), **scored(checkpoint.model(), ids)}


def tiny(make_synthetic_gguf, flags, folder):
    path = os.path.join(folder, "tiny.gguf")
    subprocess.run([make_synthetic_gguf, *flags, path], check=True)
    model = Checkpoint(path).model()
    ids = [(13 * i * i + 5 * i + 3) % model.config.vocab_size for i in range(TINY_TOKENS)]
    return {"flags": flags, "sha256": sha256(path), **scored(model, ids)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the quick-start model (deploy/model prints its path)")
    parser.add_argument("--make-synthetic-gguf", required=True, help="the built make_synthetic_gguf")
    args = parser.parse_args()
    texts = [quick_start(args.model)]
    with tempfile.TemporaryDirectory() as folder:
        texts += [tiny(args.make_synthetic_gguf, flags, folder) for flags in SCORED]
    with open(os.path.join(DATA, "scores.json"), "w") as f:
        f.write('{"texts": [\n' + ",\n".join(json.dumps(text, separators=(",", ":")) for text in texts) + "\n]}\n")


if __name__ == "__main__":
    main()
