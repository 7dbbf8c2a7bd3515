#!/usr/bin/env python3
"""Makes the files under tests/golden/data that the C++ golden tests compare with. Run by hand; see README.md."""

import argparse
import json
import os
import subprocess
import tempfile

import torch
from checkpoint import Checkpoint, sha256
from inputs import CHATS, PROMPTS, SPECIAL_STRINGS, STRINGS, TINY
from quantised_perplexity import perplexity

GREEDY_TOKENS = 48
TINY_GREEDY_TOKENS = 24
SMALLEST_MARGIN = 0.01  # below it float32 implementations may rightly disagree about a token
END_TOKENS = {0, 2}  # <|endoftext|>, <|im_end|>
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        # One entry a line: small, and a change shows as the entry that changed.
        lines = []
        for key, value in data.items():
            if isinstance(value, list):
                value = "[\n  " + ",\n  ".join(json.dumps(v) for v in value) + "\n ]"
            else:
                value = json.dumps(value)
            lines.append(f" {json.dumps(key)}: {value}")
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {os.path.getsize(path)} bytes")


def tokens(checkpoint):
    plain, special = checkpoint.tokenizer(special=False), checkpoint.tokenizer(special=True)
    strings = [{"text": t, "special": False, "ids": plain.encode(t).ids} for t in STRINGS + SPECIAL_STRINGS]
    strings += [{"text": t, "special": True, "ids": special.encode(t).ids} for t in SPECIAL_STRINGS]
    chat = checkpoint.chat_tokenizer()
    chats = []
    for messages in CHATS:
        text = chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = chat.apply_chat_template(messages, add_generation_prompt=True)
        chats.append({"messages": messages, "text": text, "ids": ids})
    return {"strings": strings, "chats": chats}


@torch.no_grad()
def continue_greedily(model, prompt, count):
    """The `count` tokens after `prompt` with the logits behind each, and end tokens treated as any other."""
    cache, ids, rows = None, torch.tensor([prompt]), []
    greedy = []
    for _ in range(count):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1])
        greedy.append(int(rows[-1].argmax()))
        ids = torch.tensor([[greedy[-1]]])
    # The same rows from one pass over everything: the cached steps must not have gone astray.
    whole = model(input_ids=torch.tensor([prompt + greedy[:-1]])).logits[0, len(prompt) - 1 :]
    difference = (torch.stack(rows) - whole).abs().max().item()
    if difference > 1e-3:
        raise ValueError(f"step by step and at once differ by {difference}")
    return greedy, whole


def entry(model, prompt, count):
    greedy, rows = continue_greedily(model, prompt, count)
    top = rows[0].topk(min(10, rows.shape[1]))
    first, second = rows.topk(2).values.unbind(-1)
    return {
        "ids": prompt,
        "top10": [{"id": int(i), "logit": round(float(v), 5)} for v, i in zip(top.values, top.indices)],
        "max_abs_logit": round(float(rows[0].abs().max()), 5),
        "greedy": greedy,
        "margins": [round(float(m), 5) for m in first - second],
    }


def generate(checkpoint):
    model, chat = checkpoint.model(), checkpoint.chat_tokenizer()
    plain = checkpoint.tokenizer(special=False)
    prompts = []
    for prompt in PROMPTS:
        if "text" in prompt:
            ids = plain.encode(prompt["text"]).ids
        else:
            ids = chat.apply_chat_template(prompt["messages"], add_generation_prompt=True)
        made = entry(model, ids, GREEDY_TOKENS)
        start = next(iter(prompt.values()))
        start = (start if isinstance(start, str) else start[-1]["content"])[:40]
        answer = chat.decode(made["greedy"])
        wanted = min(made["margins"]) >= SMALLEST_MARGIN and not END_TOKENS & set(made["greedy"])
        print(f"{'kept' if wanted else 'LEFT'} {len(ids)} tokens, margin {min(made['margins']):.4f}: {start!r} -> {answer!r}")
        if wanted:
            prompts.append({**prompt, **made})
    return {"model_sha256": sha256(checkpoint.path), "prompts": prompts}


def gemma(checkpoint, texts):
    """The texts of the quick-start model's prompts on Gemma: ids with BOS, and what follows them."""
    model = checkpoint.model()
    prompts = []
    for text in texts["prompts"]:
        made = entry(model, text["ids"], GREEDY_TOKENS)
        wanted = min(made["margins"]) >= SMALLEST_MARGIN
        print(f"{'kept' if wanted else 'LEFT'} {len(made['ids'])} tokens, margin {min(made['margins']):.4f}: {text['text'][:40]!r}")
        if wanted:
            prompts.append({"text": text["text"], **made})
    return {"model_sha256": sha256(checkpoint.path), "strings": texts["strings"], "prompts": prompts}


def decided_prompt(model, length):
    """The first of some made-up prompts on which every step is decided by a safe margin."""
    for start in range(100):
        ids = [(start + 13 * i * i + 5 * i) % model.config.vocab_size for i in range(length)]
        made = entry(model, ids, TINY_GREEDY_TOKENS)
        if min(made["margins"]) >= SMALLEST_MARGIN:
            return made
    raise ValueError(f"no prompt of {length} tokens with margins of {SMALLEST_MARGIN}")


def tiny(make_synthetic_gguf):
    checkpoints = []
    with tempfile.TemporaryDirectory() as folder:
        for flags, prompt_lengths in TINY:
            path = os.path.join(folder, "tiny.gguf")
            subprocess.run([make_synthetic_gguf, *flags, path], check=True)
            checkpoint = Checkpoint(path)
            model = checkpoint.model()
            prompts = []
            for length in prompt_lengths:
                prompts.append(decided_prompt(model, length))
                print(f"tiny {' '.join(flags)}: {length} tokens, margin {min(prompts[-1]['margins']):.4f}")
            checkpoints.append({"flags": flags, "sha256": sha256(path), "prompts": prompts})
    return {"checkpoints": checkpoints}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="the quick-start model (deploy/model prints its path): all but tiny.json")
    parser.add_argument("--make-synthetic-gguf", help="the built make_synthetic_gguf: tiny.json")
    parser.add_argument("--out", default=DATA)
    parser.add_argument("--gemma", help="gemma3-270m (`runahead pull` prints its path): gemma3.json")
    parser.add_argument("--gemma-ids", help="for --gemma: what gemma_ids.py made")
    args = parser.parse_args()
    if not args.model and not args.make_synthetic_gguf and not args.gemma:
        parser.error("give --model, --make-synthetic-gguf, --gemma, or several")
    if args.gemma:
        with open(args.gemma_ids) as f:
            write(args.out, "gemma3.json", gemma(Checkpoint(args.gemma), json.load(f)))
    if args.model:
        checkpoint = Checkpoint(args.model)
        write(args.out, "tokens.json", tokens(checkpoint))
        write(args.out, "generate.json", generate(checkpoint))
        write(args.out, "perplexity.json", {"model_sha256": sha256(args.model), **perplexity(checkpoint, DATA)})
    if args.make_synthetic_gguf:
        write(args.out, "tiny.json", tiny(args.make_synthetic_gguf))


if __name__ == "__main__":
    main()
