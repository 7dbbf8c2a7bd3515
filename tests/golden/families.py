"""GGUF files of the families that we run as transformers' configurations and state entries.

Independent of the C++ code on purpose: names and layouts are those of GGUF's converter and of transformers.
"""

import torch
import transformers

LLAMA_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LLAMA_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PHI3_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
GEMMA_LAYER = LLAMA_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OPT_TOP = {
    "token_embd": "model.decoder.embed_tokens",
    "position_embd": "model.decoder.embed_positions",
    "output_norm": "model.decoder.final_layer_norm",
}
OPT_LAYER = {
    "attn_norm": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}
STARCODER2_MLP = {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
FALCON_TOP = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
FALCON_LAYER = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}


class _Keys:
    """The metadata of one file, without the architecture in front of its keys."""

    def __init__(self, checkpoint):
        self.file = checkpoint
        self.architecture = checkpoint.field("general.architecture")
        self.tensors = {t.name: [int(n) for n in t.shape] for t in checkpoint.reader.tensors}

    def __call__(self, key, default=None):
        return self.file.field(f"{self.architecture}.{key}", default)

    def common(self):
        """What all configurations have, by the same names."""
        return {
            "vocab_size": self.tensors["token_embd.weight"][1],
            "hidden_size": self("embedding_length"),
            "num_hidden_layers": self("block_count"),
            "num_attention_heads": self("attention.head_count"),
            "max_position_embeddings": self("context_length"),
            "tie_word_embeddings": "output.weight" not in self.tensors,
            "attn_implementation": "eager",
        }

    def llama_like(self):
        heads, hidden = self("attention.head_count"), self("embedding_length")
        return self.common() | {
            "intermediate_size": self("feed_forward_length"),
            "num_key_value_heads": self("attention.head_count_kv", heads),
            "head_dim": self("attention.key_length", hidden // heads),
            "rms_norm_eps": self("attention.layer_norm_rms_epsilon"),
            "rope_theta": self("rope.freq_base", 10000.0),
            "rope_scaling": self.scaling(),
        }

    def scaling(self):
        context = self("context_length")
        if "rope_freqs.weight" in self.tensors:  # what the converter makes of llama3; synthetic files are stretched so
            return {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": context // 4,
            }
        kind = self("rope.scaling.type", "none")
        if kind == "none":
            return None
        scaling = {"rope_type": kind, "factor": self("rope.scaling.factor")}
        original = self("rope.scaling.original_context_length")
        return scaling | ({"original_max_position_embeddings": original} if original else {})


def config_and_model(checkpoint):
    """The configuration and the class of its model."""
    keys = _Keys(checkpoint)
    window = keys("attention.sliding_window")
    if keys.architecture == "opt":
        config = transformers.OPTConfig(
            ffn_dim=keys("feed_forward_length"),
            word_embed_proj_dim=keys("embedding_length"),
            do_layer_norm_before=True,
            **keys.common(),
        )
        return config, transformers.OPTForCausalLM
    if keys.architecture == "falcon":
        return _falcon_config(keys), transformers.FalconForCausalLM
    settings = keys.llama_like()
    if keys.architecture == "llama" and window:
        config = transformers.MistralConfig(sliding_window=window, **settings)
        return config, transformers.MistralForCausalLM
    if keys.architecture == "llama":
        biased = "blk.0.attn_q.bias" in keys.tensors
        config = transformers.LlamaConfig(attention_bias=biased, mlp_bias=biased, **settings)
        return config, transformers.LlamaForCausalLM
    if keys.architecture == "qwen2":
        if window:
            local = keys("attention.sliding_window_from_layer")
            settings |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": local}
        return transformers.Qwen2Config(**settings), transformers.Qwen2ForCausalLM
    if keys.architecture == "qwen3":
        return transformers.Qwen3Config(**settings), transformers.Qwen3ForCausalLM
    if keys.architecture == "phi3":
        settings |= {"sliding_window": window, "partial_rotary_factor": keys("rope.dimension_count") / settings["head_dim"]}
        return transformers.Phi3Config(**settings, pad_token_id=0), transformers.Phi3ForCausalLM
    if keys.architecture == "starcoder2":
        settings |= {"sliding_window": window, "norm_epsilon": keys("attention.layer_norm_epsilon")}
        return transformers.Starcoder2Config(**settings), transformers.Starcoder2ForCausalLM
    settings |= {"sliding_window": window, "query_pre_attn_scalar": settings["head_dim"]}
    if keys.architecture == "gemma2":
        settings |= {
            "attn_logit_softcapping": keys("attn_logit_softcapping"),
            "final_logit_softcapping": keys("final_logit_softcapping"),
        }
        return transformers.Gemma2Config(**settings), transformers.Gemma2ForCausalLM
    return transformers.Gemma3TextConfig(**settings), transformers.Gemma3ForCausalLM


def _falcon_config(keys):
    kv_heads = keys("attention.head_count_kv")
    grouped = kv_heads > 1
    return transformers.FalconConfig(
        ffn_hidden_size=keys("feed_forward_length"),
        num_kv_heads=kv_heads,
        multi_query=not grouped,
        new_decoder_architecture=grouped,
        num_ln_in_parallel_attn=2 if "blk.0.attn_norm_2.weight" in keys.tensors else 1,
        parallel_attn=True,
        alibi=False,
        bias="blk.0.attn_qkv.bias" in keys.tensors,
        layer_norm_epsilon=keys("attention.layer_norm_epsilon"),
        rope_theta=keys("rope.freq_base", 10000.0),
        **keys.common(),
    )


def hugging_face_entries(architecture, name, weight, config):
    """The entries of transformers' state that a tensor of the file is."""
    if name == "rope_freqs.weight":
        return {}
    *layer, kind, what = name.split(".")
    if architecture == "falcon":
        return {_falcon_name(layer, kind, what, config): _falcon_weight(kind, weight, config)}
    if architecture == "opt":
        prefix = f"model.decoder.layers.{layer[1]}.{OPT_LAYER[kind]}" if layer else OPT_TOP[kind]
        return {f"{prefix}.{what}": weight}
    gemma = architecture.startswith("gemma")
    if gemma and kind.endswith("norm"):
        weight = weight - 1  # transformers adds it
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind)
    if architecture == "phi3" and kind in PHI3_FUSED:
        return {f"model.layers.{layer[1]}.{PHI3_FUSED[kind]}.{what}": weight}
    if architecture == "starcoder2" and kind in STARCODER2_MLP:
        return {f"model.layers.{layer[1]}.{STARCODER2_MLP[kind]}.{what}": weight}
    if architecture == "llama" and heads:
        weight = _halves(weight, heads)
    names = GEMMA_LAYER if gemma else LLAMA_LAYER
    prefix = f"model.layers.{layer[1]}.{names[kind]}" if layer else LLAMA_TOP[kind]
    return {f"{prefix}.{what}": weight}


def _halves(weight, heads):
    """GGUF keeps the rows of Llama's Q and K as interleaved pairs, transformers as two halves."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def _falcon_name(layer, kind, what, config):
    if not layer:
        return f"{FALCON_TOP[kind]}.{what}"
    two = config.num_ln_in_parallel_attn == 2
    norms = {"attn_norm": "ln_mlp" if two else "input_layernorm", "attn_norm_2": "ln_attn"}
    return f"transformer.h.{layer[1]}.{(FALCON_LAYER | norms)[kind]}.{what}"


def _falcon_weight(kind, weight, config):
    """GGUF keeps Q over K over V, transformers a group for each KV head: its queries, its key, its value."""
    if kind != "attn_qkv":
        return weight
    head, kv_heads = config.hidden_size // config.num_attention_heads, config.num_kv_heads
    q, k, v = weight.split([config.hidden_size, kv_heads * head, kv_heads * head])
    groups = [part.reshape(kv_heads, -1, *weight.shape[1:]) for part in (q, k, v)]
    return torch.cat(groups, dim=1).reshape(weight.shape)
