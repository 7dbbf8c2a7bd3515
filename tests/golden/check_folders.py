#!/usr/bin/env python3
"""Saves tiny checkpoints of all families as transformers does, and compares our logits of these folders with its own;
and of the GGUF files that llama.cpp's converter makes of them.

usage: check_folders.py --logits build/bench/logits --out FOLDER [--converter LLAMA_CPP]

LLAMA_CPP is a folder with llama.cpp's conversion/ and gguf-py/, as llama-cpp-python's source package has one in vendor/.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import numpy
import torch
import transformers
from transformers import (FalconConfig, Gemma2Config, Gemma3TextConfig, LlamaConfig, MistralConfig, OPTConfig,
                          Phi3Config, Qwen2Config, Qwen3Config, Starcoder2Config)

TOKENS, VOCAB, TOLERANCE = 60, 320, 5e-5
SIZES = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, max_position_embeddings=256,
             initializer_range=0.3)
ALL = dict(**SIZES, intermediate_size=96, num_key_value_heads=2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
CAPS = dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
GEMMA = dict(**ALL, head_dim=32, query_pre_attn_scalar=32, sliding_window=16)

# What the converter leaves out, or cannot do, is said: then there is no GGUF to compare.
CASES = [
    ("llama", LlamaConfig(**ALL), {}),
    ("llama_mqa", LlamaConfig(**{**ALL, "num_key_value_heads": 1}), {}),
    ("llama_biases", LlamaConfig(**ALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=32), {}),
    ("llama_bf16", LlamaConfig(**ALL), dict(dtype=torch.bfloat16, shard="40KB")),
    ("llama_f16", LlamaConfig(**ALL), dict(dtype=torch.float16)),
    ("llama_linear", LlamaConfig(**ALL, rope_scaling=dict(rope_type="linear", factor=2.0)), {}),
    ("llama_dynamic", LlamaConfig(**ALL, rope_scaling=dict(rope_type="dynamic", factor=2.0)), {}),
    ("llama_yarn", LlamaConfig(**ALL, rope_scaling=YARN), {}),
    ("llama3", LlamaConfig(**ALL, rope_theta=5e5, rope_scaling=LLAMA3, tie_word_embeddings=True), {}),
    ("mistral", MistralConfig(**ALL, sliding_window=None, head_dim=24), {}),
    ("mistral_window", MistralConfig(**ALL, sliding_window=16), dict(no_gguf="the window")),
    ("qwen2", Qwen2Config(**ALL), dict(shard="60KB")),
    ("qwen2_yarn", Qwen2Config(**ALL, rope_scaling=YARN), {}),
    ("qwen2_window", Qwen2Config(**ALL, use_sliding_window=True, sliding_window=16, max_window_layers=2),
     dict(no_gguf="the window")),
    ("qwen3", Qwen3Config(**ALL, head_dim=32), {}),
    ("qwen3_yarn", Qwen3Config(**ALL, head_dim=32, rope_scaling=YARN, tie_word_embeddings=True), {}),
    ("phi3", Phi3Config(**ALL, pad_token_id=0), {}),
    ("phi3_window", Phi3Config(**ALL, pad_token_id=0, sliding_window=16), {}),
    ("gemma2", Gemma2Config(**GEMMA, **CAPS), {}),
    ("gemma2_scale", Gemma2Config(**{**GEMMA, "query_pre_attn_scalar": 20}, **CAPS), dict(no_gguf="the scale")),
    # Flatter scores: without caps f32 would be off by more than we ask for, transformers' too.
    ("gemma2_no_caps", Gemma2Config(**{**GEMMA, "query_pre_attn_scalar": 256}, attn_logit_softcapping=None,
                                    final_logit_softcapping=None),
     dict(no_gguf="the caps")),
    ("gemma3", Gemma3TextConfig(**GEMMA), {}),
    ("gemma3_linear", Gemma3TextConfig(**GEMMA, rope_scaling=dict(rope_type="linear", factor=8.0)), {}),
    ("falcon_7b", FalconConfig(**SIZES, num_kv_heads=1), {}),
    ("falcon_40b", FalconConfig(**SIZES, new_decoder_architecture=True, num_kv_heads=2), {}),
    ("falcon_11b", FalconConfig(**SIZES, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
                                tie_word_embeddings=False), {}),
    ("falcon_biases", FalconConfig(**SIZES, new_decoder_architecture=True, num_kv_heads=2, bias=True),
     dict(no_gguf="fails on biases")),
    ("falcon_mha", FalconConfig(**SIZES, multi_query=False, ffn_hidden_size=128), dict(no_gguf="fails on MHA")),
    ("starcoder2", Starcoder2Config(**ALL, rope_theta=1e5), {}),
    ("starcoder2_window", Starcoder2Config(**ALL, sliding_window=16), dict(no_gguf="the window")),
    ("opt", OPTConfig(vocab_size=VOCAB, hidden_size=64, ffn_dim=96, num_hidden_layers=4, num_attention_heads=4,
                      max_position_embeddings=256, word_embed_proj_dim=64, init_std=0.3), dict(no_gguf="no OPT")),
]


def save(folder, config, dtype=torch.float32, shard="5GB"):
    """The folder, and transformers' logits of what is in it, in f32."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "norm" in name or name.endswith("bias") or "ln_" in name:
                values.add_(0.2 * torch.randn(values.shape))
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    # The converter counts tokens by it.
    tokens = {"model": {"vocab": {str(i): i for i in range(VOCAB)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    loaded = type(model).from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(0, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return ids[0].tolist(), loaded(input_ids=ids).logits[0].numpy()


def difference(logits, path, ids, wanted):
    """How far ours are off, beside the largest of their row; or why there are none."""
    done = subprocess.run([logits, str(path), "2", "f32"], input=" ".join(map(str, ids)).encode(), capture_output=True)
    if done.returncode != 0:
        return done.stderr.decode()[-300:]
    ours = numpy.frombuffer(done.stdout, numpy.float32).reshape(wanted.shape)
    return float((numpy.abs(ours - wanted).max(1) / numpy.abs(wanted).max(1)).max())


# In a process of its own: the converter without its vocabularies, which it knows by their hashes.
CONVERT = """
import importlib, pathlib, sys
root, folder, out = sys.argv[1:4]
sys.path[:0] = [root, root + "/gguf-py"]
import gguf
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
hparams = ModelBase.load_hparams(pathlib.Path(folder), False)
model = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
model.set_vocab = lambda self: None
model(pathlib.Path(folder), gguf.LlamaFileType.ALL_F32, pathlib.Path(out)).write()
"""


def convert(root, folder, out):
    done = subprocess.run([sys.executable, "-c", CONVERT, root, str(folder), str(out)], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip().split("\n")[-1][:200]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--logits", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--converter")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    bad = 0
    for name, config, how in CASES:
        no_gguf = how.pop("no_gguf", None)
        folder, gguf = args.out / name, args.out / f"{name}.gguf"
        ids, wanted = save(folder, config, **how)
        said = {"folder": difference(args.logits, folder, ids, wanted)}
        if args.converter and no_gguf is None:
            said["gguf"] = convert(args.converter, folder, gguf) or difference(args.logits, gguf, ids, wanted)
        bad += any(not isinstance(value, float) or value > TOLERANCE for value in said.values())
        said |= {"gguf": f"the converter leaves out: {no_gguf}"} if no_gguf else {}
        print(name, *(f"{what} {f'{v:.1e}' if isinstance(v, float) else v}" for what, v in said.items()), flush=True)
    sys.exit(f"{bad} of {len(CASES)} differ by more than {TOLERANCE}" if bad else 0)


if __name__ == "__main__":
    main()
