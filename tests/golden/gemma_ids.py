#!/usr/bin/env python3
"""Ids of texts in Gemma's vocabulary, by llama.cpp: for make_golden.py --gemma-ids.

transformers' own reader of GGUF vocabularies splits words otherwise. Run where llama-cpp-python 0.3.36 is installed:
gemma_ids.py MODEL > ids.json
"""

import json
import sys

from inputs import PROMPTS, STRINGS
from llama_cpp import Llama


def main():
    model = Llama(sys.argv[1], vocab_only=True, verbose=False)

    def ids(text, add_bos):
        return model.tokenize(text.encode(), add_bos=add_bos, special=False)

    texts = [prompt["text"] for prompt in PROMPTS if "text" in prompt]
    made = {
        "prompts": [{"text": text, "ids": ids(text, True)} for text in texts],
        "strings": [{"text": text, "ids": ids(text, False)} for text in STRINGS],
    }
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
