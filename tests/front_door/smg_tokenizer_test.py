"""The ids that SMG sends to an engine, which are ours: of texts by every golden vocabulary, and of chats by every golden
template. What differs is named here, with the reason, and in docs/tokenizer-folder.md; a name that differs no more is red.

usage: smg_tokenizer_test.py WRITE_TOKENIZER_FOLDER TOKENIZE_TEXTS ENCODE_CHATS
"""

import collections
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "deploy")]
import conversations  # noqa: E402
import live  # noqa: E402
import smg_process  # noqa: E402, beside this file
import tokenizer_texts  # noqa: E402
import tools  # noqa: E402

GGUF = "gpt2 opt llama3 qwen2 smollm falcon llama2 phi3 gemma unigram".split()
JSON = GGUF + ["mistral", "unigram_unknown"]
GOLDEN = json.loads((TESTS / "golden/data/templates.json").read_text(encoding="utf-8"))["rendered"]
CONVERSATIONS = conversations.CONVERSATIONS + [  # and what clients of the API send beside them
    {"messages": [conversations.user("Time?")], "tools": [{"type": "function", "function": {"name": "clock", "description": "The time"}}]},
    {"messages": [conversations.user("Time?"), {**conversations.calls(conversations.CLOCK_CALL), "content": None},
                  conversations.result("12:00", tool_call_id="123456789")], "tools": [conversations.CLOCK]},
]
TEMPLATE_VOCABULARY = "llama2"  # each character is a token of it, or bytes: other text, other ids
SENT = 120  # texts a vocabulary that go to the engine; all of them are tokenized
LIST = 40  # of these, in one request
DATE = "31 Jul 2025"  # of conversations.NOW, as a template that asks for the time writes it; SMG has no other time than now


def said(conversation, name):
    return conversation.get(name, conversation.get("variables", {}).get(name))


def calls(conversation):
    return [call for message in conversation["messages"] for call in message.get("tool_calls", ())]


def arguments(conversation):
    return [conversations.as_object(call["function"]["arguments"]) for call in calls(conversation)]


def goes_on(conversation):
    """With an assistant's message, as SMG does it."""
    last = conversation["messages"][-1]
    return "continue_final_message" in conversation and last["role"] == "assistant" and not last["content"].endswith("\n")


def bare_tools(conversation):
    return any("parameters" not in tool["function"] for tool in conversation.get("tools", ()))


ANY = set(GOLDEN)
ASKING = {name for name in GOLDEN  # whether an answer begins
          if "add_generation_prompt" in (TESTS / f"golden/templates/{name}.jinja").read_text(encoding="utf-8")}
TOLD = set("chatml falcon gemma2 gemma3 llama2 llama3 mistral phi3 smollm".split())  # of tools, for these know none
# What SMG 1.13.0 does otherwise: of which templates, and of which conversations, as a predicate. The first that holds is
# its name.
DIFFERENCES = {
    "its filter int has no default": ({"constructs"}, lambda conversation: True),
    "a call without an id is refused": (ANY, lambda conversation: any("id" not in call for call in calls(conversation))),
    "a developer's message is a system message": (
        ANY, lambda conversation: any(message["role"] == "developer" for message in conversation["messages"])),
    "a prompt always ends where an answer begins": (
        ASKING, lambda conversation: said(conversation, "add_generation_prompt") is False and not goes_on(conversation)),
    "it goes on with an assistant's message only, with a line's end behind it, where a member of the request says so": (
        ANY, lambda conversation: said(conversation, "continue_final_message") and not goes_on(conversation)),
    "a tool's result has no name": (
        {"command_r"}, lambda conversation: any("name" in message for message in conversation["messages"])),
    "arguments of calls are objects for templates that write them as texts": (
        {"deepseek_text", "functionary", "written_arguments"}, calls),
    "lists are written as JSON where Python writes them otherwise": (
        {"asking_arguments"}, lambda conversation: any(isinstance(value, list) for one in arguments(conversation)
                                                       for value in one.values())),
    "an exponent has one digit": (ANY, lambda conversation: "1.5e-07" in str(arguments(conversation))),
    "content that is null is None, which templates write, or fail with": (
        {"asking_arguments", *TOLD}, lambda conversation: any(message["content"] is None for message in conversation["messages"])),
    "a template that goes through a tool's properties fails where it has none": ({"command_r"}, bare_tools),
    "a tool without parameters has empty ones": ({"llama3_1", "mistral_tools", "qwen2_5", "qwen3"}, bare_tools),
    # Where our router does more than rendering.
    "tools and calls are left out where the template knows none": (
        TOLD, lambda conversation: "tools" in conversation or calls(conversation)),
    "names of control tokens in what users write are these tokens": (
        ANY, lambda conversation: "</s>" in json.dumps(conversation["messages"])),
    "a chat is sent of which the template leaves a message out": (
        {"mistral"}, lambda conversation: any(message["role"] == "system" for message in conversation["messages"])),
    "a message that the template changes is gone on with": (
        {"deepseek"}, lambda conversation: goes_on(conversation) and "</think>" in conversation["messages"][-1]["content"]),
    "a prompt that goes on with a message may ask for the begin of a new one, too": (
        ANY, lambda conversation: goes_on(conversation) and conversation.get("add_generation_prompt", False)),
}


def difference(template, conversation):
    return next((name for name, (templates, holds) in DIFFERENCES.items()
                 if template in templates and holds(conversation)), None)


def body(conversation):
    """The conversation as a request of OpenAI's API, in which arguments are texts."""
    messages = [conversations.with_arguments(message, lambda one: one if isinstance(one, str) else conversations.dumps(one))
                for message in conversation["messages"]]
    turn = {key: conversation[key] for key in (*conversations.TURN, "tools") if key in conversation}
    return {"messages": messages, "max_tokens": 1, **turn,
            "chat_template_kwargs": {"date_string": DATE, **conversation.get("variables", {})}}


class SmgTokenizerTest(unittest.TestCase):
    """One SMG, in front of an engine for each vocabulary and each template."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.texts = tokenizer_texts.texts()
        cls.protocol = recording_engine.Protocol(cls.folder)
        cls.engines = {}
        for kind, names in (("gguf", GGUF), ("json", JSON)):
            for name in names:
                cls.serve(f"{kind}-{name}", kind, name)
        for name in GOLDEN:
            cls.serve(f"chat-{name}", "gguf", TEMPLATE_VOCABULARY, TESTS / f"golden/templates/{name}.jinja")
        addresses = {name: engine.address for name, engine in cls.engines.items()}
        cls.smg = cls.enterClassContext(smg_process.Smg(cls.folder, addresses, "--disable-retries"))

    @classmethod
    def serve(cls, model, kind, *what):
        out = cls.folder / model
        subprocess.run([WRITE, kind, what[0], out, *what[1:]], check=True, timeout=live.PATIENCE)
        engine = recording_engine.RecordingEngine(cls.protocol, model, pathlib.Path(f"{out}.zip").read_bytes())
        cls.engines[model] = cls.enterClassContext(engine)

    def ours(self, model, texts):
        """The ids of each text by our own tokenizer, with names of control tokens as these tokens (`ids`), and as text."""
        path = self.folder / f"{model}.{'json' if model.startswith('json-') else 'gguf'}"
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        done = subprocess.run([TOKENIZE, path], input=lines, capture_output=True, text=True, timeout=live.PATIENCE,
                              check=True)
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def encoded(self, model, bodies):
        """What our HTTP door and our router make of each chat: {"ids"} or {"refused"}."""
        lines = "".join(json.dumps(one) + "\n" for one in bodies)
        done = subprocess.run([ENCODE, self.folder / f"{model}.gguf", str(conversations.NOW)], input=lines,
                              capture_output=True, text=True, timeout=live.PATIENCE, check=True)
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def sent(self, model, path, asked):
        """The ids that reach the engine for one request, or why there are none."""
        engine = self.engines[model]
        engine.asked.clear()
        status, answer = self.smg.post(path, {"model": model, **asked})
        return (list(engine.asked), None) if status == 200 else (None, f"{status} {answer}")

    def vocabularies(self):
        """Each model with a vocabulary, its texts and our ids of them."""
        for model in self.engines:
            kind, name = model.split("-")
            if kind == "chat":
                continue
            # It makes bytes of these.
            texts = [text for text in self.texts if "unigram" not in name or "<0x" not in text]
            self.assertGreater(len(texts), 0.95 * len(self.texts))
            with self.subTest(vocabulary=model):
                yield model, texts, [one["ids"] for one in self.ours(model, texts)]

    def test_texts_have_our_ids(self):
        for model, texts, ours in self.vocabularies():
            status, answer = self.smg.post("/v1/tokenize", {"model": model, "prompt": texts})
            self.assertEqual(status, 200, answer)
            for text, theirs, wanted in zip(texts, answer["tokens"], ours, strict=True):
                self.assertEqual(theirs, wanted, ascii(text))

    def test_a_unigram_vocabulary_makes_a_byte_of_what_is_written_like_one(self):
        ours, = self.ours("gguf-unigram", ["<0x41>"])
        status, answer = self.smg.post("/v1/tokenize", {"model": "gguf-unigram", "prompt": "<0x41>"})
        self.assertEqual(status, 200, answer)
        self.assertNotEqual(answer["tokens"], ours["ids"])

    def test_completions_bring_our_ids_without_a_begin_token(self):
        for model, texts, ours in self.vocabularies():
            some = [(text, ids) for text, ids in zip(texts, ours, strict=True) if text][:SENT]
            for at in range(0, SENT, LIST):
                part = some[at:at + LIST]
                sent, why = self.sent(model, "/v1/completions", {"prompt": [text for text, _ in part], "max_tokens": 1})
                # The prompts of a list come in any order.
                self.assertEqual(sorted(sent or ()), sorted(ids for _, ids in part), why)

    def test_a_prompt_that_names_the_begin_token_begins_with_it(self):
        golden = json.loads((TESTS / "golden/data/tokenizers/llama2.json").read_text(encoding="utf-8"))
        ours, = self.ours("gguf-llama2", ["hello"])
        sent, why = self.sent("gguf-llama2", "/v1/completions", {"prompt": "<s>hello", "max_tokens": 1})
        self.assertEqual(sent, [golden["begin"] + ours["ids"]], why)

    def test_chats_have_our_ids(self):
        """Ours are of our own door, our router's template and all that it does beside rendering."""
        same, seen, differs = 0, collections.Counter(), collections.Counter()
        for template in GOLDEN:
            model = f"chat-{template}"
            bodies = [body(conversation) for conversation in CONVERSATIONS]
            for number, (asked, ours) in enumerate(zip(bodies, self.encoded(model, bodies), strict=True)):
                sent, why = self.sent(model, "/v1/chat/completions", asked)
                differ = sent != (None if "refused" in ours else [ours["ids"]])
                named = difference(template, CONVERSATIONS[number])
                if named:
                    seen[named] += 1
                    differs[named] += differ
                    continue
                with self.subTest(template=template, conversation=number):
                    self.assertFalse(differ, f"{asked}\nours: {ours}\ntheirs: {why or sent}")
                    same += 1
        print(f"{same} chats are the same; differ, of those that have a name:")
        for name in DIFFERENCES:
            print(f"  {differs[name]} of {seen[name]}: {name}")
            self.assertGreater(differs[name], 0, f"what has a name is no difference any more: {name}")
        self.assertEqual(same + sum(seen.values()), len(GOLDEN) * len(CONVERSATIONS))
        self.assertGreater(same, 840)

    def test_names_of_control_tokens_in_what_users_write_are_the_difference(self):
        """SMG makes control tokens of them; we do not."""
        model = "chat-chatml"
        text, end = self.ours(model, ["Say </s> twice.", "</s>"])
        self.assertEqual(len(end["ids"]), 1)
        sent, why = self.sent(model, "/v1/chat/completions", body({"messages": [conversations.user("Say </s> twice.")]}))
        self.assertIn(end["ids"][0], sent[0], why)
        self.assertNotIn(end["ids"][0], text["plain"])


if __name__ == "__main__":
    missing = [name for name in ("smg", "grpc", "google") if importlib.util.find_spec(name) is None]
    if missing or shutil.which("protoc") is None:
        print(f"did not run here: SMG's ids: no {', '.join(missing) or 'protoc'} (tests/front_door/requirements.txt)")
        sys.exit(tools.SKIPPED)
    import recording_engine  # beside this file
    WRITE, TOKENIZE, ENCODE = sys.argv[-3:]
    del sys.argv[-3:]
    unittest.main(verbosity=2)
