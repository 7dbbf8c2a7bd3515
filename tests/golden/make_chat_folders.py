#!/usr/bin/env python3
"""Writes data/chat_folders.json: what transformers' tokenizers render by the chat templates and tokens of folders that
have them in one file or another.

Each folder has the tokenizer.json of data/tokenizers/llama2.json, and these files beside it."""
import json
import pathlib
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "additional_special_tokens", "image_token")
# Each token that is defined, by its name.
SHOWN = "".join("{% if " + name + " is defined %}" + name + "={{ " + name + " }};{% endif %}" for name in NAMES)
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}}}]
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
CONFIG, MAP, JINJA, MORE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "additional_chat_templates/"


def added(content, typed=True):
    token = {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", **token} if typed else token


def config(**keys):
    return json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **keys})


def named(**templates):
    return [{"name": name, "template": template} for name, template in templates.items()]


def folders():
    """Their files, by name and text."""
    # Tokens.
    yield {CONFIG: config(**ENDS, chat_template=SHOWN)}
    yield {CONFIG: config(**ENDS, unk_token="<unk>", pad_token="<unk>", chat_template=SHOWN)}
    yield {CONFIG: config(bos_token=None, eos_token="</s>", pad_token=None, chat_template=SHOWN)}
    yield {CONFIG: config(bos_token="<s>", eos_token=None, pad_token="<unk>", chat_template=SHOWN)}
    yield {CONFIG: config(bos_token="</s>", eos_token="<s>", chat_template=SHOWN)}
    yield {CONFIG: config(**ENDS, sep_token="<sep>", cls_token="<cls>", mask_token="<mask>", pad_token="", chat_template=SHOWN)}
    yield {CONFIG: config(**{key: added(token) for key, token in ENDS.items()}, pad_token=added("<pad>"),
                          additional_special_tokens=["<a>", added("<b>")], chat_template=SHOWN)}
    yield {CONFIG: config(**ENDS, additional_special_tokens=[], chat_template=SHOWN)}
    yield {CONFIG: config(**ENDS, extra_special_tokens={"image_token": "<image>"}, chat_template=SHOWN)}
    every = {**ENDS, "pad_token": added("<pad>", typed=False), "unk_token": "<unk>", "additional_special_tokens": ["<a>", added("<c>", typed=False)]}
    yield {CONFIG: config(**ENDS, chat_template=SHOWN), MAP: json.dumps(every)}
    yield {CONFIG: config(bos_token="<x>", eos_token="<y>", pad_token="<z>", additional_special_tokens=["<b>", "<a>"], chat_template=SHOWN), MAP: json.dumps(every)}
    decoder = {"0": added("<unk>", typed=False) | {"special": True}}
    yield {CONFIG: config(**ENDS, pad_token="</s>", added_tokens_decoder=decoder, chat_template=SHOWN), MAP: json.dumps(every)}
    yield {CONFIG: config(**ENDS, added_tokens_decoder={}, chat_template=SHOWN), MAP: json.dumps(every)}
    # Templates.
    plain, tools, other = "plain {{ messages[0].content }}", "tools {{ tools | length }}", "other"
    yield {CONFIG: config(**ENDS)}
    yield {CONFIG: config(**ENDS, chat_template=plain)}
    yield {CONFIG: config(**ENDS, chat_template=other), JINJA: plain}
    yield {CONFIG: config(**ENDS, chat_template=named(default=plain))}
    yield {CONFIG: config(**ENDS, chat_template=named(default=plain, tool_use=tools, rag=other))}
    yield {CONFIG: config(**ENDS, chat_template=named(tool_use=tools))}
    yield {CONFIG: config(**ENDS, chat_template=named(rag=other))}
    yield {CONFIG: config(**ENDS, chat_template={"default": plain, "tool_use": tools})}
    yield {CONFIG: config(**ENDS), JINJA: plain, MORE + "tool_use.jinja": tools}
    yield {CONFIG: config(**ENDS, chat_template=named(default=other, tool_use=other)), JINJA: plain}
    yield {CONFIG: config(**ENDS, chat_template=named(default=other, tool_use=other)), MORE + "tool_use.jinja": tools}
    yield {CONFIG: config(**ENDS, chat_template=other), MORE + "tool_use.jinja": tools}
    yield {CONFIG: config(**ENDS, chat_template=other), MORE + "rag.jinja": other}
    yield {CONFIG: config(**ENDS), JINJA: plain, MORE + "rag.jinja": other}
    yield {CONFIG: config(**ENDS), JINJA: other, MORE + "default.jinja": plain}
    yield {CONFIG: config(**ENDS), MORE + "default.jinja": plain, MORE + "tool_use.jinja": tools, MORE + "tool_use.txt": other}
    yield {CONFIG: config(**ENDS), JINJA: plain, "chat_templates/tool_use.jinja": other}


TEXT = "Hi <s>a</s> <t>b </ c"


def classes():
    """What tokenizer.json lacks of the above, and the configuration beside it."""
    def case(without=(), **keys):
        return {"without": list(without), "files": {CONFIG: json.dumps(keys)}}

    fast, llama = dict(ENDS, tokenizer_class="PreTrainedTokenizerFast"), dict(ENDS, tokenizer_class="LlamaTokenizer")
    yield case(**fast)
    yield case(**fast, add_bos_token=False)
    yield case(["post_processor"], **fast)
    yield case(["post_processor"], **fast, add_bos_token=True)
    yield case(["post_processor"], **dict(fast, tokenizer_class="Qwen2Tokenizer"), add_bos_token=True)
    yield case(["post_processor"], **llama)
    yield case(["post_processor"], tokenizer_class="LlamaTokenizerFast")
    yield case(**llama, add_bos_token=False)
    yield case(**dict(llama, bos_token="</s>"))
    yield case(**dict(ENDS, tokenizer_class="GPTNeoXTokenizerFast"))
    yield case(["post_processor"], **dict(ENDS, tokenizer_class="GemmaTokenizer"))
    decoder = {"1": added("<s>", typed=False) | {"special": True}, "2": added("</s>", typed=False) | {"special": True}}
    yield case(["added_tokens"], **fast)
    yield case(["added_tokens"], **fast, added_tokens_decoder=decoder)
    yield case(**fast, added_tokens_decoder=decoder | {"900": added("<t>", typed=False) | {"special": True}})
    yield case(**fast, added_tokens_decoder=decoder | {"900": added("<t>", typed=False) | {"special": False, "lstrip": True}})
    yield case(**fast, pad_token="</")
    yield case(**fast, additional_special_tokens=["</"])


def rendered(folder, tools):
    """Null where transformers refuses it."""
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(MESSAGES, tools=tools, tokenize=False)
    except ValueError as error:
        print(str(error)[:100])
        return None


def write(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main():
    tokenizer = json.loads((HERE / "data/tokenizers/llama2.json").read_text(encoding="utf-8"))["tokenizer"]
    golden = {"messages": MESSAGES, "tools": json.dumps(TOOLS), "folders": [], "text": TEXT, "classes": []}
    for files in folders():
        with tempfile.TemporaryDirectory() as folder:
            write(folder, {"tokenizer.json": json.dumps(tokenizer), **files})
            golden["folders"].append({"files": files, "plain": rendered(folder, None), "tools": rendered(folder, TOOLS)})
    for case in classes():
        with tempfile.TemporaryDirectory() as folder:
            lacks = {name: [] if name == "added_tokens" else None for name in case["without"]}
            write(folder, {"tokenizer.json": json.dumps(tokenizer | lacks), **case["files"]})
            loaded = AutoTokenizer.from_pretrained(folder)
            golden["classes"].append({**case, "ids": loaded(TEXT)["input_ids"]})
            print(type(loaded).__name__, golden["classes"][-1])
    (HERE / "data/chat_folders.json").write_text(json.dumps(golden, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
