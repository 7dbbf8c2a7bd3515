#!/usr/bin/env python3
"""Compares the tokenizer with what others say of real vocabularies, which are too large for this repository.

usage: check_vocabularies.py TOKENIZE_TEXTS FOLDER

TOKENIZE_TEXTS is build/tests/tokenize_texts. FOLDER has vocabularies with texts and ids beside them, as llama.cpp's
`models/` has: NAME.gguf, NAME.gguf.inp, NAME.gguf.out. Prints one line a vocabulary; exit status 1 where ids differ.
"""
import json
import pathlib
import subprocess
import sys

SEPARATOR = "\n__ggml_vocab_test__\n"


def tokenize(tool, model, texts):
    """Ids of each text, or what the tool says where it takes no such model."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([tool, model], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return [json.loads(line) for line in done.stdout.splitlines()], ""


def check(tool, model):
    """Texts, how many of them differ, and what to say."""
    texts = pathlib.Path(f"{model}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    wanted = [[int(id) for id in line.split()] for line in pathlib.Path(f"{model}.out").read_text().splitlines()]
    texts = texts[:len(wanted)]
    found, refusal = tokenize(tool, model, texts)
    if found is None:
        return len(texts), 0, f"refused: {refusal}"
    wrong = [i for i, ids in enumerate(wanted) if found[i]["ids"] != ids]
    for i in wrong[:5]:
        print(f"  {texts[i]!r}\n    wanted {wanted[i]}\n    found  {found[i]['ids']}")
    return len(texts), len(wrong), f"{len(texts) - len(wrong)} of {len(texts)} texts have the same ids"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    failed = 0
    for model in sorted(folder.glob("*.gguf")):
        if not pathlib.Path(f"{model}.out").exists():
            continue
        _, wrong, words = check(tool, model)
        failed += wrong
        print(f"{model.name}: {words}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
