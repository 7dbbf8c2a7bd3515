#!/usr/bin/env python3
"""Compares the tokenizer with what others say of real vocabularies, which are too large for this repository.

usage: check_vocabularies.py TOKENIZE_TEXTS PATH...

TOKENIZE_TEXTS is build/tests/tokenize_texts. A PATH is
  NAME.gguf        with NAME.gguf.inp and NAME.gguf.out beside it (texts and ids, as llama.cpp's folder `models` has them):
                   compared with these, and on the texts of tokenizer_texts.py with the `tokenizers` library, which is
                   given the same vocabulary; both from the file and from the tokenizer.json that the library writes
  NAME.model*      of SentencePiece: compared with that library, from GGUF keys made of it
  NAME.tiktoken=NAME.gguf   of Llama 3: compared with tiktoken, by the vocabulary of the GGUF file
Prints one line a comparison; exit status 1 where ids differ.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

sys.dont_write_bytecode = True
import make_tokenizers as families  # noqa: E402, beside this file
import tokenizer_texts  # noqa: E402

SEPARATOR = "\n__ggml_vocab_test__\n"


def tokenize(tool, model, texts):
    """Of each text an object with `ids`, `plain` and `text`."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([tool, str(model)], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{model}: refused: {done.stderr.strip()}")
        return None
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def report(what, texts, wanted, found):
    """Prints the count and the first that differ; how many do."""
    wrong = [i for i, one in enumerate(wanted) if one is not None and found[i] != one]
    print(f"{what}: {sum(one is not None for one in wanted) - len(wrong)} of {sum(one is not None for one in wanted)} are the same")
    for i in wrong[:4]:
        print(f"  {texts[i][:120]!r}\n    wanted {str(wanted[i])[:240]}\n    found  {str(found[i])[:240]}")
    return len(wrong)


def read_gguf(path):
    """Values of the tokenizer's keys."""
    values = {}
    for key, field in gguf.GGUFReader(path).fields.items():
        if not key.startswith(("tokenizer.ggml", "general.architecture")):
            continue
        parts = [field.parts[i] for i in field.data]
        text = field.types[-1] == gguf.GGUFValueType.STRING
        value = [bytes(part).decode() if text else part[0].item() for part in parts]
        values[key.removeprefix("tokenizer.ggml.")] = value if field.types[0] == gguf.GGUFValueType.ARRAY else value[0]
    return values


PRE_TOKENIZERS = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "starcoder": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": lambda: pre_tokenizers.Sequence(
        [families.split(families.GPT4.replace("NUMBER", r"\p{N}{1,3}")), families.plain_bytes()]),
    "qwen2": lambda: pre_tokenizers.Sequence(
        [families.split(families.GPT4.replace("NUMBER", r"\p{N}")), families.plain_bytes()]),
    "falcon": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
         pre_tokenizers.Digits(individual_digits=False), families.split("[0-9][0-9][0-9]")]),
}
PRE_TOKENIZERS["refact"] = PRE_TOKENIZERS["starcoder"]


def library_tokenizer(keys):
    """The `tokenizers` library with the vocabulary of a GGUF file and its family's rules."""
    ids = {}
    for id, token in enumerate(keys["tokens"]):
        ids.setdefault(token, id)
    merges = [tuple(merge.split(" ", 1)) for merge in keys.get("merges", [])]
    if keys["model"] == "gpt2":
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=keys["pre"] == "llama-bpe"))
        if keys["pre"] == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = PRE_TOKENIZERS[keys["pre"]]()
        tokenizer.decoder = decoders.ByteLevel()
    elif keys["model"] == "gemma4":  # not read from GGUF: for its vocabulary, by Gemma's rules
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", families.MARK)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([decoders.Replace(families.MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        pieces = [(token, id) for token, id in ids.items() if keys["token_type"][id] in (families.NORMAL, families.USER_DEFINED)]
        merges = families.generate_merges(dict(pieces), {token: keys["scores"][id] for token, id in pieces})
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(families.MARK), normalizers.Replace(" ", families.MARK)])
        tokenizer.decoder = decoders.Sequence([decoders.Replace(families.MARK, " "), decoders.ByteFallback(),
                                               decoders.Fuse(), decoders.Strip(content=" ", left=1)])
    phi3 = keys["general.architecture"] == "phi3"
    for id, kind in enumerate(keys["token_type"]):
        name = keys["tokens"][id]
        strips = phi3 and name not in ("<unk>", "<s>", "<|endoftext|>")
        token = AddedToken(name, normalized=False, rstrip=strips)
        if kind in (families.UNKNOWN, families.CONTROL):
            tokenizer.add_special_tokens([token])
        elif kind == families.USER_DEFINED:
            tokenizer.add_tokens([token])
    return tokenizer


def check_gguf(tool, path):
    texts = pathlib.Path(f"{path}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    wanted = [[int(id) for id in line.split()] for line in pathlib.Path(f"{path}.out").read_text().splitlines()]
    name = pathlib.Path(path).name
    tokenizer = library_tokenizer(read_gguf(path))
    forms, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "tokenizer.json"
        tokenizer.save(str(written))
        for form, model in (("GGUF", path), ("tokenizer.json", written)):
            found = tokenize(tool, model, texts + tokenizer_texts.texts())
            if found is not None:
                forms.append((form, found))
    for form, found in forms:
        wrong += report(f"{name} from {form}, llama.cpp's texts and ids", texts, wanted, [one["ids"] for one in found])
    own = len(texts)
    texts = tokenizer_texts.texts()
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded]
    decoded = [None if "\ufffd" in text else text for text in decoded]
    for form, found in forms:
        found = found[own:]
        wrong += report(f"{name} from {form}, the library's ids", texts, encoded, [one["ids"] for one in found])
        wrong += report(f"{name} from {form}, the library's decoded texts", texts, decoded, [one["text"] for one in found])
    return wrong


def check_sentencepiece(tool, path):
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = [text for text in tokenizer_texts.texts() if "\0" not in text]
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(model, "llama")
        pieces = families.pieces_of(processor)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece for piece, _ in pieces])
        writer.add_token_scores([score for _, score in pieces])
        writer.add_token_types(families.types_of(processor, (), ()))
        writer.add_bos_token_id(processor.bos_id())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        found = tokenize(tool, model, texts)
    if found is None:
        return 1
    wanted = [processor.encode(text) for text in texts]
    return report(f"{pathlib.Path(path).name}, sentencepiece's ids", texts, wanted, [one["plain"] for one in found])


def check_tiktoken(tool, path, model):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    encoding = tiktoken.Encoding("llama3", pat_str=families.GPT4.replace("NUMBER", r"\p{N}{1,3}"),
                                 mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})
    texts = tokenizer_texts.texts()
    found = tokenize(tool, model, texts)
    if found is None:
        return 1
    wanted = [encoding.encode_ordinary(text) for text in texts]
    return report(f"{pathlib.Path(path).name}, tiktoken's ids", texts, wanted, [one["plain"] for one in found])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tool, wrong = sys.argv[1], 0
    for path in sys.argv[2:]:
        if "=" in path:
            wrong += check_tiktoken(tool, *path.split("=", 1))
        elif path.endswith(".gguf"):
            wrong += check_gguf(tool, path)
        else:
            wrong += check_sentencepiece(tool, path)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
