"""The tokenizer of a synthetic checkpoint (tests/testing/synthetic_vocabulary.cc) as a folder that others read.

Independent of the product: only the names of GGUF's keys are common.
"""

import json
import struct

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY, CONTROL = 8, 9, 3


class Metadata(dict):
    """Keys and values of a GGUF file."""

    def __init__(self, path):
        super().__init__()
        with open(path, "rb") as self.file:
            magic, _, _, keys = self.take("4sIQQ")
            if magic != b"GGUF":
                raise ValueError(f"{path} is no GGUF")
            for _ in range(keys):
                key = self.string()
                self[key] = self.value(self.take("I")[0])

    def take(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))

    def string(self):
        return self.file.read(self.take("Q")[0]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.take(NUMBERS[kind])[0]
        kind, count = self.take("IQ")
        return [self.value(kind) for _ in range(count)]


def write(model, folder):
    """Writes the folder of the checkpoint at `model`."""
    read = Metadata(model)
    tokens, types = read["tokenizer.ggml.tokens"], read["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == CONTROL]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": special, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, split]},
        "decoder": split,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": read["tokenizer.ggml.merges"]}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": read["tokenizer.chat_template"],
        "eos_token": tokens[read["tokenizer.ggml.eos_token_id"]]}))
