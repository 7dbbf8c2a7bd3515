#!/usr/bin/env python3
"""Writes data/layouts: one tiny checkpoint in the forms in which folders and GGUF files are found, each with the logits
that transformers has of it.

usage: make_layouts.py

own_head      tie_word_embeddings beside a head that differs: transformers from 5 on takes the head, so the logits are those
              of transformers 4 with the key set to false
equal_head    the same beside a head that is the embedding
buffers       model-00001-of-00001.safetensors without an index, buffers of older releases, chat_template.json; compared
              with transformers given the same tensors as model.safetensors
split-*.gguf  written by gguf's own writer in several files; the logits are those of the folder equal_head
"""
import json
import pathlib

import gguf
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
OUT = HERE / "data" / "layouts"
VOCAB, HIDDEN, HEADS, KV_HEADS, FFN = 32, 16, 2, 1, 24
CONFIG = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
                                  num_key_value_heads=KV_HEADS, intermediate_size=FFN, max_position_embeddings=64,
                                  initializer_range=0.3, tie_word_embeddings=True)
IDS = [1, 5, 9, 30, 2, 2, 17, 8, 31, 0, 12, 3]
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def logits(folder, tied):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, tie_word_embeddings=tied,
                                                              attn_implementation="eager").eval()
    with torch.no_grad():
        return [[round(float(value), 6) for value in row] for row in model(input_ids=torch.tensor([IDS])).logits[0]]


def write_folder(name, tensors, file="model.safetensors"):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / file, metadata={"format": "pt"})
    CONFIG.architectures = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(CONFIG.to_diff_dict(), indent=1, sort_keys=True) + "\n")
    return folder


def permuted(rows, heads):
    """Q and K as GGUF files have them."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_split(tensors):
    for old in OUT.glob("split-*.gguf"):
        old.unlink()
    writer = gguf.GGUFWriter(OUT / "split.gguf", "llama", split_max_tensors=8)
    writer.add_name("split")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(CONFIG.rope_theta)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, CONFIG.num_hidden_layers)
    for name, values in tensors.items():
        values = values.numpy()
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), permuted(values, heads) if heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIG)
    tensors = {name: values.detach().clone() for name, values in model.named_parameters() if name != "lm_head.weight"}
    for name, values in tensors.items():
        if "norm" in name:
            values.add_(0.2 * torch.randn(values.shape))
    embedding = tensors["model.embed_tokens.weight"]
    golden = {"ids": IDS, "template": TEMPLATE, "logits": {}}

    folder = write_folder("own_head", tensors | {"lm_head.weight": 0.3 * torch.randn(embedding.shape)})
    golden["logits"]["own_head"] = logits(folder, tied=False)
    folder = write_folder("equal_head", tensors | {"lm_head.weight": embedding.clone()})
    golden["logits"]["equal_head"] = logits(folder, tied=True)
    write_split(tensors)
    golden["logits"]["split-00001-of-00003.gguf"] = golden["logits"]["equal_head"]

    head_dim = HIDDEN // HEADS
    layer = "model.layers.0.self_attn."
    buffers = {layer + "rotary_emb.inv_freq": torch.randn(head_dim // 2),
               layer + "rotary_emb.cos_cached": torch.randn(1, 1, 64, head_dim),
               layer + "rotary_emb.sin_cached": torch.randn(1, 1, 64, head_dim),
               layer + "masked_bias": torch.tensor(-1e4),
               layer + "bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}
    folder = write_folder("buffers", tensors | buffers)
    golden["logits"]["buffers"] = logits(folder, tied=True)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}) + "\n")

    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
