"""The folder that a gateway gets of our tokenizer, judged by the library that it reads it with: Hugging Face's `tokenizers`
makes the same ids and texts as we do, of every golden vocabulary and of real models, and Jinja2 renders the same chats.

usage: tokenizer_folder_test.py WRITE_TOKENIZER_FOLDER TOKENIZE_TEXTS

Real models are those of RUNAHEAD_TEST_MODEL and RUNAHEAD_TEST_GEMMA. docs/tokenizer-folder.md has what differs.
"""

import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "deploy")]
import conversations  # noqa: E402
import tokenizer_texts  # noqa: E402
import tools  # noqa: E402

try:
    import jinja2.ext
    import jinja2.sandbox
    import tokenizers
except ImportError as error:
    print(f"did not run here: {error} (tests/front_door/requirements.txt)")
    sys.exit(tools.SKIPPED)

PATIENCE = 120  # seconds, for one program
GGUF = "gpt2 opt llama3 qwen2 smollm falcon llama2 phi3 gemma unigram".split()
JSON = GGUF + ["mistral", "unigram_unknown"]
UNKNOWN = "\ufffd"


def random_texts(count=500):
    """Of all scripts and kinds: letters, digits, white space, emoji, controls, and what looks like broken UTF-8."""
    dice = random.Random(36)
    broken = [UNKNOWN, "\xc3\xa4", "\xef\xbb\xbf", "\x80\xff", "\\xff", "%F0%9F", "<0xE4>", "\u200b", "\x00", "\x1b[0m"]
    scripts = [tokenizer_texts.letters(first, last) for _, first, last in tokenizer_texts.SCRIPTS]
    texts = []
    for _ in range(count):
        alphabet = dice.choice(scripts)
        pieces = ["".join(dice.choice(alphabet) for _ in range(dice.randint(1, 9))), str(dice.randint(0, 10 ** 9)),
                  dice.choice(tokenizer_texts.SPACES) * dice.randint(1, 4), dice.choice(tokenizer_texts.EMOJI),
                  dice.choice(broken), dice.choice(tokenizer_texts.SENTENCES), dice.choice(tokenizer_texts.CODE), " ", "\n"]
        texts.append("".join(dice.choice(pieces) for _ in range(dice.randint(1, 12))))
    return texts


class GenerationTag(jinja2.ext.Extension):
    """transformers' own tag, which marks what the model wrote. Nothing is rendered otherwise by it."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """Jinja as transformers sets it up."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[GenerationTag, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    now = datetime.datetime.fromtimestamp(conversations.NOW, datetime.timezone.utc)
    made.filters["tojson"] = tojson
    made.globals.update(raise_exception=raise_exception, strftime_now=now.strftime)
    return made


def is_rendered_alone(conversation):
    """Whether rendering is all that is done. transformers cuts what a last message begins, and of calls whose arguments are
    JSON as text it has two renderings (tests/golden/README.md)."""
    settings = {**conversation, **conversation.get("variables", {})}
    return not settings.get("continue_final_message") and not any(
        isinstance(call["function"]["arguments"], str)
        for message in conversation["messages"] for call in message.get("tool_calls", ()))


def render(template, conversation, tokens):
    given = {"tools": conversation.get("tools"), "documents": None,
             "add_generation_prompt": conversation.get("add_generation_prompt", True), **tokens,
             **conversation.get("variables", {})}
    try:
        return template.render(messages=conversation["messages"], **given)
    except TypeError:  # it adds arguments to texts
        texts = [conversations.with_arguments(message, conversations.dumps) for message in conversation["messages"]]
        return template.render(messages=texts, **given)


class TokenizerFolderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.texts = tokenizer_texts.texts() + random_texts()

    def archive(self, kind, what, *template):
        """The files of the folder, and what it is compared with."""
        out = self.folder / f"{kind}-{pathlib.Path(what).name}"
        done = subprocess.run([WRITE, kind, what, out, *template], capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with zipfile.ZipFile(f"{out}.zip") as archive:
            self.assertIsNone(archive.testzip())
            files = {name: archive.read(name).decode() for name in archive.namelist()}
        return files, what if kind == "model" else f"{out}.{kind}"

    def ours(self, model, texts):
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        done = subprocess.run([TOKENIZE, model], input=lines, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def compare(self, files, model, unigram=False):
        library = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
        compared = decoded = 0
        for text, ours in zip(self.texts, self.ours(model, self.texts), strict=True):
            if unigram and "<0x" in text:
                continue  # it makes bytes of these
            ids = library.encode(text, add_special_tokens=False).ids
            self.assertEqual(ids, ours["ids"], ascii(text))
            compared += 1
            back = library.decode(ids, skip_special_tokens=False)
            if UNKNOWN not in back:  # it makes one of each byte of a run that is no UTF-8
                self.assertEqual(back, ours["text"], ascii(text))
                decoded += 1
        self.assertGreater(compared, 0.95 * len(self.texts))
        self.assertGreater(decoded, 0.7 * len(self.texts))
        return library

    def test_every_golden_vocabulary_as_gguf(self):
        for name in GGUF:
            with self.subTest(vocabulary=name):
                files, model = self.archive("gguf", name)
                library = self.compare(files, model, unigram=name == "unigram")
                golden = json.loads((TESTS / f"golden/data/tokenizers/{name}.json").read_text(encoding="utf-8"))
                begin = library.encode("a").ids[:-len(library.encode("a", add_special_tokens=False).ids)]
                self.assertEqual(begin, golden["begin"])

    def test_every_golden_vocabulary_written_from_what_was_read(self):
        for name in JSON:
            with self.subTest(vocabulary=name):
                self.compare(*self.archive("json", name), unigram=name.startswith("unigram"))

    def test_every_golden_template_renders_the_same(self):
        golden = json.loads((TESTS / "golden/data/templates.json").read_text(encoding="utf-8"))
        compared = 0
        for name, rendered in golden["rendered"].items():
            files, _ = self.archive("gguf", "llama2", TESTS / f"golden/templates/{name}.jinja")
            config = json.loads(files["tokenizer_config.json"])
            template = environment().from_string(config["chat_template"])
            tokens = {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str) and value}
            for number, conversation in enumerate(conversations.CONVERSATIONS):
                if rendered[number] is None or not is_rendered_alone(conversation):
                    continue
                with self.subTest(template=name, conversation=number):
                    self.assertEqual(render(template, conversation, tokens), rendered[number])
                    compared += 1
        self.assertGreater(compared, 900)

    def model(self, variable):
        path = os.environ.get(variable)
        if not path:
            print(f"did not run here: {variable} names no model")
            self.skipTest(variable)
        return path

    def test_the_quick_start_model(self):
        files, model = self.archive("model", self.model("RUNAHEAD_TEST_MODEL"))
        library = self.compare(files, model)
        config = json.loads(files["tokenizer_config.json"])
        template = environment().from_string(config["chat_template"])
        chats = json.loads((TESTS / "golden/data/tokens.json").read_text(encoding="utf-8"))["chats"]
        self.assertTrue(chats)
        for chat in chats:
            text = template.render(messages=chat["messages"], add_generation_prompt=True, bos_token=config["bos_token"],
                                   eos_token=config["eos_token"])
            self.assertEqual(text, chat["text"])
            self.assertEqual(library.encode(text, add_special_tokens=False).ids, chat["ids"])

    def test_the_second_real_model(self):
        files, model = self.archive("model", self.model("RUNAHEAD_TEST_GEMMA"))
        self.compare(files, model)

    def test_names_of_control_tokens_in_what_users_write_are_the_difference(self):
        """The library makes control tokens of them, and has no setting for that in the file; we do not."""
        files, model = self.archive("gguf", "smollm")
        library = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
        end = library.token_to_id("<|im_end|>")
        text = "Say <|im_end|> twice."
        ours, = self.ours(model, [text])
        self.assertIn(end, library.encode(text, add_special_tokens=False).ids)
        self.assertIn(end, ours["ids"])
        self.assertNotIn(end, ours["plain"])


if __name__ == "__main__":
    WRITE, TOKENIZE = sys.argv[-2:]
    del sys.argv[-2:]
    unittest.main(verbosity=2)
