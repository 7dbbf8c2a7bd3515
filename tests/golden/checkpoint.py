"""Loads a GGUF of a family that we run into Hugging Face transformers in float32, and its tokenizer.

Independent of the C++ code on purpose: what it loads is the reference that the C++ code is compared with.
"""

import hashlib

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from families import config_and_model, hugging_face_entries

CONTROL = 3  # token type of special tokens in tokenizer.ggml.token_type

def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class Checkpoint:
    def __init__(self, path):
        self.path = path
        self.reader = GGUFReader(path)

    def field(self, key, default=None):
        """A metadata value: a number, a string, or a list of either."""
        field = self.reader.fields.get(key)
        if field is None:
            return default
        is_text = field.types[-1].name == "STRING"
        values = [bytes(field.parts[i]).decode() if is_text else field.parts[i].tolist()[0] for i in field.data]
        return values if field.types[0].name == "ARRAY" else values[0]

    def model(self):
        config, model_class = config_and_model(self)
        state = {}
        for tensor in self.reader.tensors:
            weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
            weight = weight.reshape([int(n) for n in reversed(tensor.shape)])
            state.update(hugging_face_entries(self.field("general.architecture"), tensor.name, weight, config))
        model = model_class(config).float().eval()
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"} or (missing and not config.tie_word_embeddings):
            raise ValueError(f"{self.path}: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        return model

    def tokenizer(self, special):
        """Byte-level BPE of the file's own vocabulary. Without `special`, special tokens in a text are ordinary text."""
        if self.field("tokenizer.ggml.model") != "gpt2" or self.field("tokenizer.ggml.pre") != "smollm":
            raise ValueError(f"{self.path}: only the pre-tokenizer 'smollm' is known here")
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        if special:
            types = self.field("tokenizer.ggml.token_type")
            control = [t for t, kind in zip(tokens, types) if kind == CONTROL]
            tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
        return tokenizer

    def chat_tokenizer(self):
        return PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer(special=True), chat_template=self.field("tokenizer.chat_template")
        )
