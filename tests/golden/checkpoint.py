"""Loads a GGUF of a family that we run into Hugging Face transformers in float32, and its tokenizer.

Independent of the C++ code on purpose: what it loads is the reference that the C++ code is compared with.
"""

import hashlib

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

CONTROL = 3  # token type of special tokens in tokenizer.ggml.token_type

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

OPT_TOP_NAMES = {
    "token_embd": "model.decoder.embed_tokens",
    "position_embd": "model.decoder.embed_positions",
    "output_norm": "model.decoder.final_layer_norm",
}
OPT_LAYER_NAMES = {
    "attn_norm": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}


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

    def opt_config(self):
        embedding = next(t for t in self.reader.tensors if t.name == "token_embd.weight")
        hidden = self.field("opt.embedding_length")
        return OPTConfig(
            hidden_size=hidden,
            word_embed_proj_dim=hidden,
            ffn_dim=self.field("opt.feed_forward_length"),
            num_hidden_layers=self.field("opt.block_count"),
            num_attention_heads=self.field("opt.attention.head_count"),
            vocab_size=int(embedding.shape[1]),
            max_position_embeddings=self.field("opt.context_length"),
            do_layer_norm_before=True,
            attn_implementation="eager",
        )

    def llama_config(self):
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        names = {t.name for t in self.reader.tensors}
        embedding = next(t for t in self.reader.tensors if t.name == "token_embd.weight")
        return LlamaConfig(
            hidden_size=hidden,
            intermediate_size=self.field("llama.feed_forward_length"),
            num_hidden_layers=self.field("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self.field("llama.attention.head_count_kv", heads),
            head_dim=self.field("llama.attention.key_length", hidden // heads),
            vocab_size=int(embedding.shape[1]),
            max_position_embeddings=self.field("llama.context_length"),
            rms_norm_eps=self.field("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=self.field("llama.rope.freq_base", 10000.0),
            tie_word_embeddings="output.weight" not in names,
            attention_bias=False,
            attn_implementation="eager",
        )

    def model(self):
        opt = self.field("general.architecture") == "opt"
        config = self.opt_config() if opt else self.llama_config()
        hugging_face_entry = self._opt_entry if opt else self._llama_entry
        state = {}
        for tensor in self.reader.tensors:
            weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
            weight = weight.reshape([int(n) for n in reversed(tensor.shape)])
            state.update(hugging_face_entry(tensor.name, weight, config))
        model = (OPTForCausalLM if opt else LlamaForCausalLM)(config).float().eval()
        missing, unexpected = model.load_state_dict(state, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"} or (missing and not config.tie_word_embeddings):
            raise ValueError(f"{self.path}: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        return model

    @staticmethod
    def _opt_entry(name, weight, config):
        *layer, kind, what = name.split(".")
        if not layer:
            return {f"{OPT_TOP_NAMES[kind]}.{what}": weight}
        return {f"model.decoder.layers.{layer[1]}.{OPT_LAYER_NAMES[kind]}.{what}": weight}

    @staticmethod
    def _llama_entry(name, weight, config):
        top = {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight",
        }
        if name in top:
            return {top[name]: weight}
        _, layer, kind, _ = name.split(".")
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind)
        if heads:
            # GGUF keeps the rows of Q and K as interleaved pairs, transformers as two halves.
            rows, columns = weight.shape
            weight = weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
        return {f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight": weight}

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
