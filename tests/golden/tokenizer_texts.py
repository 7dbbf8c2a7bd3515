"""Texts to tokenize, and a corpus to train small vocabularies on: made by script from ranges of Unicode, and from a few
lines written for this. The same on every run."""
import random
import unicodedata

# Name, first and last character.
SCRIPTS = [
    ("latin", 0x41, 0x7A), ("latin-1", 0xC0, 0xFF), ("latin extended", 0x1E00, 0x1EFF), ("greek", 0x386, 0x3CE),
    ("cyrillic", 0x400, 0x45F), ("armenian", 0x531, 0x586), ("hebrew", 0x5D0, 0x5EA), ("arabic", 0x620, 0x669),
    ("devanagari", 0x904, 0x96F), ("bengali", 0x985, 0x9EF), ("tamil", 0xB85, 0xBEF), ("telugu", 0xC05, 0xC6F),
    ("thai", 0xE01, 0xE5B), ("tibetan", 0xF00, 0xFBC), ("georgian", 0x10D0, 0x10FA), ("ethiopic", 0x1200, 0x1357),
    ("khmer", 0x1780, 0x17E9), ("cherokee", 0x13A0, 0x13F4), ("hiragana", 0x3041, 0x3096), ("katakana", 0x30A1, 0x30FA),
    ("hangul", 0xAC00, 0xD7A3), ("han", 0x4E00, 0x9FA5), ("gothic", 0x10330, 0x1034A), ("cuneiform", 0x12000, 0x12399),
]
CODE = [
    "for (int i = 0; i < count; ++i) {\n  total += values[i] * 2;\n}\n",
    "def mean(values):\n    \"\"\"Of none it is 0.\"\"\"\n    return sum(values) / max(len(values), 1)\n",
    "SELECT name, COUNT(*) FROM workers WHERE state <> 'lost' GROUP BY name;\n",
    "<p class=\"note\">It&rsquo;s <b>5 &times; 3</b></p>\r\n",
    "{\"width\": 4, \"parts\": [700, 324], \"even\": false}\n",
    "\tif err != nil {\n\t\treturn fmt.Errorf(\"worker %d: %w\", id, err)\n\t}\n",
    "curl -s http://localhost:7001/metrics | grep -c '^runahead_'\n",
    "let x: Option<&'static str> = None; // nothing yet\n",
    "a^2 + b^2 = c^2, so c ~ 3.14159e-2 or 0xFF & ~0b1010\n",
]
SENTENCES = [
    "The worker that has the memory waits for the one that has the work.", "It's what they'd said; we'll see, I'm sure!",
    "DON'T SHOUT, YOU'RE HEARD.", "In 2024 there were 1,234,567 tokens, 12.5% of them new.", "Wait... what?! (Really.)",
    "What the model knows, it knows by numbers, and numbers it does not know.", "Ein Wurm frisst sich durch den Käse.",
    "Où est la gare d'été ?", "¿Dónde está el niño?", "Zażółć gęślą jaźń", "Đây là một câu tiếng Việt.",
    "Быстрая лиса ждёт.", "これはテストです。", "这是一个测试，请看。", "이것은 시험입니다.", "هذا اختبار قصير", "זה מבחן קצר",
    "यह एक परीक्षा है", "นี่คือการทดสอบ", "Αυτό είναι ένα τεστ",
]
SPACES = [chr(c) for c in (0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x2000, 0x2003, 0x200A, 0x2028, 0x2029, 0x202F,
                           0x205F, 0x3000)]
ODD = [chr(c) for c in (0x0, 0x1, 0x7, 0x1B, 0x7F, 0x80, 0x9F, 0xAD, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x202A,
                        0x202E, 0x2060, 0x2066, 0x2069, 0xFEFF, 0xFFFC, 0xFFFD, 0xFFFF, 0xE0041, 0xF0000, 0x10FFFF)]
EMOJI = ["😀", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "👍🏽", "❤️", "1️⃣", "🧑🏿‍🚀", "☃"]
SPECIALS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|user|>",
            "<|end|>", "<|assistant|>", "<start_of_turn>", "<end_of_turn>", "<tool_call>", "<0x41>", "<0xE4>", "▁", "▁▁", "Ġ", "##"]


def letters(first, last):
    return [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c))[0] in "LMN"]


def words(rng, alphabet, count):
    """Words of two to nine letters, some of them often."""
    known = ["".join(rng.choice(alphabet) for _ in range(rng.randint(2, 9))) for _ in range(60)]
    return [known[min(int(rng.paretovariate(0.7)) - 1, len(known) - 1)] for _ in range(count)]


def corpus():
    """Lines to train on: half of them sentences and code, the rest words of each script's first letters."""
    rng = random.Random(1)
    lines = []
    for _ in range(60):
        lines += CODE + SENTENCES
    for name, first, last in SCRIPTS[:22]:
        alphabet = letters(first, last)[:12]
        lines += [" ".join(words(rng, alphabet, 12)) for _ in range(8 if name != "latin" else 80)]
    rng.shuffle(lines)
    return lines


def texts():
    """Some 2,000, each once."""
    rng = random.Random(2)
    out = [""] + SENTENCES + CODE + SPACES + ODD + EMOJI + SPECIALS
    for _, first, last in SCRIPTS:
        alphabet = letters(first, last)
        for count in (1, 1, 2, 3, 4, 6, 8):
            for _ in range(3):
                out.append(" ".join(words(rng, alphabet, count)))
        out.append(unicodedata.normalize("NFD", "".join(alphabet[:20])))
        out.append(unicodedata.normalize("NFKC", "".join(alphabet[:20])) + "".join(alphabet[-5:]))
    pieces = SENTENCES + CODE + SPACES * 2 + ODD + EMOJI + ["e\u0301", "A\u030a", "\u0301", "a\u0316\u0301", "ﬁ", "①", "ｶﾞ", "ﷺ", "Å", "ſ", "İ"]
    pieces += [" ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "'LL", "'", "''", "...", "123", "4", "99", "²", "½", "Ⅷ", "٣", "_", "-"]
    for _ in range(500):  # of all kinds
        out.append("".join(rng.choice(pieces) for _ in range(rng.randint(2, 6))))
    for _ in range(250):  # white space and what stands beside it
        out.append("".join(rng.choice(SPACES + ["a", "b1", "!", " ", " ", " ", "\n"]) for _ in range(rng.randint(2, 9))))
    for _ in range(150):  # control characters and joiners
        out.append("".join(rng.choice(ODD + ["a", " ", "7", "é"]) for _ in range(rng.randint(2, 7))))
    for _ in range(100):  # numbers
        out.append("".join(rng.choice("0123456789.,:- eE٣५") for _ in range(rng.randint(1, 14))))
    for _ in range(100):  # punctuation
        out.append("".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ a1«»—…¡、。") for _ in range(rng.randint(1, 12))))
    for _ in range(250):  # names of special tokens
        out.append("".join(rng.choice(SPECIALS + SPECIALS + SENTENCES[:6] + [" ", "\n", "  ", "a", "\u3000"])
                           for _ in range(rng.randint(1, 6))))
    for _ in range(60):  # any character there is
        chars = [chr(rng.randrange(0x20, 0x2FFFF)) for _ in range(rng.randint(3, 12))]
        out.append("".join(c for c in chars if unicodedata.category(c) not in ("Cn", "Cs", "Co")))
    for unit in ["a", " ", "\n", "ab", "é", "你", "👍", "the", "0", "!", "e\u0301", "\t ", "▁", "_", "aB", "\u0e01\u0e34"]:  # long words
        out += [unit * 70, unit * 300 + "x"]
    return list(dict.fromkeys(out))
