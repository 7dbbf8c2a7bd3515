#!/usr/bin/env python3
"""Makes the golden files of data/tokenizers: small vocabularies with the settings of the families, and what the
`tokenizers` library makes of some 2,000 texts (tokenizer_texts.py).

usage: make_tokenizers.py [FOLDER]      (default: data/tokenizers beside this script)
"""
import io
import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import generate_merges

sys.dont_write_bytecode = True
import tokenizer_texts  # noqa: E402, beside this file

FULL = 150  # so many texts have their ids in the file, and the others a sum of them
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MARK = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_level(size, pre_tokenizer, specials, normalizer=None, ignore_merges=False, added=()):
    """A byte-level BPE trained on the corpus; special tokens come behind it, as most families have them."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(tokenizer_texts.corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in specials])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in added])
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def plain_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def begin_with(tokenizer, name):
    id = tokenizer.token_to_id(name)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, id)])


def gguf_of(pre, **keys):
    """GGUF's keys beside tokens, types and merges, which the test takes from the tokenizer.json."""
    return {"model": "gpt2", "pre": pre, **keys}


def sentencepiece_model(kind, size, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tokenizer_texts.corpus()), model_writer=model, model_type=kind, vocab_size=size,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        split_digits=True, character_coverage=0.999, minloglevel=2, num_threads=1, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(processor):
    return [(processor.id_to_piece(id), processor.get_score(id)) for id in range(processor.get_piece_size())]


def types_of(processor, controls, user_defined):
    def type_of(id):
        if processor.id_to_piece(id) in user_defined:
            return USER_DEFINED
        if processor.is_unknown(id):
            return UNKNOWN
        if processor.is_control(id) or processor.id_to_piece(id) in controls:
            return CONTROL
        if processor.is_byte(id):
            return BYTE
        return NORMAL
    return [type_of(id) for id in range(processor.get_piece_size())]


def piece_tokenizer(processor, model):
    """Around a SentencePiece model, as transformers converts Llama 2's."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(content=" ", left=1)])
    tokenizer.add_special_tokens([AddedToken(processor.id_to_piece(id), normalized=False, special=True)
                                  for id in range(processor.get_piece_size())
                                  if processor.is_unknown(id) or processor.is_control(id)])
    return tokenizer


def piece_bpe(processor):
    pieces = dict(pieces_of(processor))
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges = generate_merges(ids, pieces)
    return models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def piece_gguf(processor, model="llama", controls=(), user_defined=(), extra=(), **keys):
    """`extra`: type numbers of the tokens that were added behind the pieces."""
    scores = [score for _, score in pieces_of(processor)]
    return {"model": model, "scores": scores + [0.0] * len(extra), "types": types_of(processor, controls, user_defined) + list(extra), **keys}


def gpt2():
    tokenizer = byte_level(700, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    return tokenizer, gguf_of("gpt-2")


def opt():
    tokenizer = byte_level(600, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<s>", "</s>", "<unk>"])
    begin_with(tokenizer, "</s>")
    return tokenizer, gguf_of("gpt-2", bos="</s>", add_bos=True)


def llama3():
    pre = pre_tokenizers.Sequence([split(GPT4.replace("NUMBER", r"\p{N}{1,3}")), plain_bytes()])
    tokenizer = byte_level(800, pre, ["<|begin_of_text|>", "<|eot_id|>"], ignore_merges=True)
    begin_with(tokenizer, "<|begin_of_text|>")
    return tokenizer, gguf_of("llama-bpe", bos="<|begin_of_text|>")


def qwen2():
    pre = pre_tokenizers.Sequence([split(GPT4.replace("NUMBER", r"\p{N}")), plain_bytes()])
    tokenizer = byte_level(700, pre, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC(), added=["<tool_call>"])
    return tokenizer, gguf_of("qwen2")


def smollm():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return byte_level(600, pre, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]), gguf_of("smollm")


def falcon():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False),
                                   pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")])
    return byte_level(700, pre, ["<|endoftext|>"]), gguf_of("falcon")


def llama2():
    processor = sentencepiece_model("bpe", 900, byte_fallback=True)
    tokenizer = piece_tokenizer(processor, piece_bpe(processor))
    begin_with(tokenizer, "<s>")
    return tokenizer, piece_gguf(processor, bos="<s>")


def mistral():
    """The same vocabulary, but a mark at the very begin only: GGUF has no word for that."""
    processor = sentencepiece_model("bpe", 900, byte_fallback=True)
    tokenizer = piece_tokenizer(processor, piece_bpe(processor))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    begin_with(tokenizer, "<s>")
    return tokenizer, None


def phi3():
    processor = sentencepiece_model("bpe", 800, byte_fallback=True)
    tokenizer = piece_tokenizer(processor, piece_bpe(processor))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    behind = ["<|assistant|>", "<|user|>", "<|end|>"]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, rstrip=True, special=True) for name in behind])
    text = json.loads(tokenizer.to_str())
    for token in text["added_tokens"]:
        token["rstrip"] = token["rstrip"] or token["content"] == "</s>"
    tokenizer = Tokenizer.from_str(json.dumps(text))
    return tokenizer, piece_gguf(processor, architecture="phi3", extra=[CONTROL] * 4, bos="<s>", add_bos=False)


def gemma():
    runs = [MARK * n for n in (2, 3, 4, 8)]
    turns = ["<start_of_turn>", "<end_of_turn>"]
    processor = sentencepiece_model("bpe", 900, byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=turns + runs)
    tokenizer = piece_tokenizer(processor, piece_bpe(processor))
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in turns])
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    begin_with(tokenizer, "<s>")
    return tokenizer, piece_gguf(processor, controls=turns, user_defined=runs, add_space_prefix=False, bos="<s>")


def unigram():
    processor = sentencepiece_model("unigram", 900, byte_fallback=True)
    tokenizer = piece_tokenizer(processor, models.Unigram(pieces_of(processor), unk_id=0, byte_fallback=True))
    return tokenizer, piece_gguf(processor, model="t5", bos="<s>", add_bos=False)


def unigram_unknown():
    """Without bytes; blanks as Metaspace has them, and NFKC: no GGUF file is like this."""
    processor = sentencepiece_model("unigram", 700)
    tokenizer = piece_tokenizer(processor, models.Unigram(pieces_of(processor), unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False, right=True),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    return tokenizer, None


def sum_of(data):
    """FNV-1a of 32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def sum_of_ids(ids):
    return sum_of(b"".join(id.to_bytes(4, "little") for id in ids))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def golden(tokenizer, gguf, texts):
    """What the library says. A sum is 0 where ours is another on purpose:
    - its decoder makes U+FFFD of a whole run of bytes that has one wrong, which no stream can;
    - its Unigram takes what is written like a control token, or like a byte's, for that token;
    - from GGUF, marks that stand in the text and blanks become one run (`gguf_skips`)."""
    ids = [ids_of(tokenizer, text) for text in texts]
    decoded = [tokenizer.decode(one, skip_special_tokens=False) for one in ids]
    tokenizer.encode_special_tokens = True
    plain = [ids_of(tokenizer, text) for text in texts]
    tokenizer.encode_special_tokens = False
    text = json.loads(tokenizer.to_str())
    unigram = text["model"]["type"] == "Unigram"
    controls = [token["content"] for token in text["added_tokens"] if token["special"]]
    like_byte = [unigram and "<0x" in one for one in texts]
    like_control = [unigram and any(name in one for name in controls) for one in texts]
    begin = tokenizer.encode("a").ids[:-len(ids_of(tokenizer, "a"))]
    return {"tokenizer": text, "gguf": gguf, "begin": begin, "ids": ids[:FULL],
            "sums": [0 if byte else sum_of_ids(one) for one, byte in zip(ids, like_byte)],
            "plain_sums": [0 if byte or control else sum_of_ids(one)
                           for one, byte, control in zip(plain, like_byte, like_control)],
            "gguf_skips": [i for i, one in enumerate(texts) if MARK * 2 in one],
            "decoded_sums": [0 if "\ufffd" in one or byte else sum_of(one.encode()) for one, byte in zip(decoded, like_byte)]}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "data/tokenizers")
    folder.mkdir(parents=True, exist_ok=True)
    texts = tokenizer_texts.texts()
    write = {"texts": texts}
    (folder / "texts.json").write_text(json.dumps(write, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    for make in (gpt2, opt, llama3, qwen2, smollm, falcon, llama2, mistral, phi3, gemma, unigram, unigram_unknown):
        content = golden(*make(), texts)
        path = folder / f"{make.__name__}.json"
        path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        print(path.name, path.stat().st_size, "bytes,", len(content["tokenizer"]["model"]["vocab"]), "tokens")


if __name__ == "__main__":
    main()
