"""What make_golden.py asks: texts to tokenize, chats to render, prompts to continue, tiny checkpoints to make."""

STRINGS = [
    "",
    " ",
    "\n",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll go; he'd, she's, it isn't, YOU'RE, I'M.",
    "don't DON'T don\u2019t 'tis o'clock '90s",
    "antidisestablishmentarianism supercalifragilisticexpialidocious",
    "MixedCASE camelCase snake_case kebab-case SCREAMING_SNAKE",
    "Dr. Smith paid $1,234.56 (20% off!) on 2024-03-17 at 09:45.",
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    # digits
    "0",
    "1234567890",
    "3.14159 1e-5 0xFF 1_000_000 -42 +7",
    "x1y2z3 a  1 b   22",
    "\u0661\u0662\u0663 \u00bd \u2460 \u2167 x\u00b2",
    # blanks
    "  two before",
    "two after  ",
    "a  b   c    d     e",
    "tab\tone\t\ttwo\t \tmixed",
    "line\nnext\n\nparagraph\n\n\n\nfar",
    "\r\nwindows\r\nlines\r\n",
    "   \n   \n\t\n",
    "trailing blanks    \n    indented",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space, zero\u200bwidth",
    # code
    "def f(x):\n    if x > 0:\n        return x ** 2\n    return None\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // dot product\n",
    "#include <vector>\ntemplate <typename T>\nstd::vector<T> make(size_t n) { return std::vector<T>(n); }\n",
    'SELECT name, COUNT(*) AS c FROM "users" WHERE age >= 18 GROUP BY name HAVING c > 1;',
    '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}',
    "$ grep -rn 'TODO' src/ | wc -l && echo \"done\"",
    "<div class=\"a\"><p>Hi &amp; bye</p></div>",
    "\\frac{a}{b} = \\sum_{i=1}^{n} x_i^2",
    # languages
    "Xin ch\u00e0o, t\u00f4i l\u00e0 m\u1ed9t m\u00f4 h\u00ecnh ng\u00f4n ng\u1eef.",
    "H\u00e0 N\u1ed9i l\u00e0 th\u1ee7 \u0111\u00f4 c\u1ee7a Vi\u1ec7t Nam; \u0110\u1eb7ng Th\u1ecb Ng\u1ecdc Th\u1ecbnh s\u1ed1ng \u1edf \u0111\u00f3.",
    "Tie\u0302\u0301ng Vie\u0323\u0302t",  # decomposed marks
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002",
    "\u4eba\u5de5\u667a\u80fd\u6a21\u578bGPT\u57282023\u5e74\u5f88\u6d41\u884c",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3067\u3059\u3002\u30ab\u30bf\u30ab\u30ca",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f",
    "\u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0652\u0643\u064f\u0645 123 \u0663\u0662\u0661",
    "\u05e9\u05dc\u05d5\u05dd \u0441\u043f\u0430\u0441\u0438\u0431\u043e \u03b5\u03c5\u03c7\u03b1\u03c1\u03b9\u03c3\u03c4\u03ce \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "Stra\u00dfe, na\u00efve, \u00e9l\u00e8ve, pi\u00f1ata, \u0141\u00f3d\u017a, \u0130stanbul, \u01c6",
    # emoji
    "\U0001F600",
    "I \u2764\ufe0f you \U0001F44D\U0001F3FD!",
    "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 family \U0001F3F3\ufe0f\u200d\U0001F308 flag",
    "\U0001F1FB\U0001F1F3\U0001F1E9\U0001F1EA 1\ufe0f\u20e3 \U0001F9D1\U0001F3FE\u200d\U0001F4BB\U0001F680\U0001F680",
    # oddities
    "a\u0301\u0301\u0301\u0301 Z\u0351\u036b\u0343a\u0328lgo",
    "\u00ab\u00bb \u2014 \u2026 \u201cquotes\u201d \u2018x\u2019 \u2022 \u00a9 \u2122 \u20ac \u00a3 \u00a5 \u221e \u2260 \u2211",
    "\ufeffbyte order mark, soft\u00adhyphen, \u202eright to left\u202c",
    "plane 1: \U0001D4D0\U0001D4EA \U00010348 \U0001D7D8, plane 2: \U00020000",
    "mixed: Vi\u1ec7t \u4e2d\u6587 \u0639\u0631\u0628\u064a \U0001F680 code(x) => 42;\n\tEND",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!??? ... --- *** ### @@@ ((([[[{{{}}}]]])))",
    "word " * 40,
]

# Encoded twice: with special tokens recognised, and as ordinary text.
SPECIAL_STRINGS = [
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "text<|im_end|>text",
    "two <|im_end|><|im_end|> in a row",
    " <|im_start|> with blanks  <|im_end|>  ",
    "<|im_start <|im_end| |im_end|> <|IM_END|> <| im_end |>",
    "<repo_name>a/b<file_sep>main.py\nprint('x')<|endoftext|>",
    "<reponame><filename><gh_stars>100<issue_start><issue_comment>hm<issue_closed>",
    "<jupyter_start><jupyter_text>t<jupyter_code>1+1<jupyter_output>2<empty_output>",
    "1<|im_end|>2 <|im_end|>3",
    "\u4f60\u597d<|im_end|>\U0001F600<|endoftext|>\u00e9",
    "nothing special here",
]


def _user(text):
    return [{"role": "user", "content": text}]


CHATS = [
    _user("Hello"),
    _user(""),
    _user("  blanks around \n"),
    _user("Xin ch\u00e0o! \u4f60\u597d \U0001F468\u200d\U0001F469\u200d\U0001F467 {{ braces }} {% if %}"),
    [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "Capital of France?"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3+3?"},
    ],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
        {"role": "assistant", "content": "Four"},
        {"role": "user", "content": "Five\nSix"},
    ],
    [{"role": "user", "content": "Start a poem"}, {"role": "assistant", "content": "Roses are"}],
    [{"role": "user", "content": "First"}, {"role": "system", "content": "A late system message"}],
    [{"role": "assistant", "content": "I speak first."}, {"role": "user", "content": "Then I."}],
]

_COLOURS = ["red", "green", "blue", "white", "black", "yellow", "brown"]
_FRUITS = ["apples", "pears", "plums", "lemons", "figs"]


def _boxes(count):
    """A made-up inventory: long, regular enough to be remembered, with no two lines alike."""
    return "\n".join(
        f"Box {i} is {_COLOURS[i * 5 % 7]} and holds {(i * 37 + 11) % 90 + 2} {_FRUITS[i * 3 % 5]}." for i in range(1, count + 1)
    )


_STORY = (
    "The lighthouse keeper had not spoken to anyone for eleven weeks when the boat arrived. It was a small boat, painted "
    "green, and it carried three passengers: a woman with a leather case, a boy of about nine, and an old dog that "
    "refused to leave the bow. The keeper watched them climb the stone steps and wondered what could bring people to "
    "such a place in November. He put the kettle on the stove, found a third cup behind the lamp oil, and opened the "
    "door before they could knock. The woman smiled, set her case down on the table, and said that she had come about "
    "the light. For twenty years, she explained, ships had written in their logs that it blinked once too often every "
    "seventh night, and the office in the capital wanted to know why. The keeper sat down slowly. He had hoped that no "
    "one would ever ask. Outside, the wind turned to the north, and the waves began to strike the rocks with a sound "
    "like doors closing far below. The boy asked whether the dog could have some water. The keeper filled a bowl, and "
    "then, because there was nothing else to do, he began to tell them the truth about the seventh night"
)

# Candidates: those are kept whose every step is decided by a margin that float32 implementations cannot miss.
PROMPTS = [
    {"text": "The"},
    {"text": "Hello"},
    {"text": "Once upon a time"},
    {"text": "1, 2, 3, 4, 5, 6,"},
    {"text": "The capital of France is"},
    {"text": "import numpy as np\n\ndef softmax(x):\n"},
    {"text": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n"},
    {"text": "Water boils at 100 degrees Celsius. Ice melts at"},
    {"text": "Monday, Tuesday, Wednesday,"},
    {"text": "Xin ch\u00e0o, t\u00f4i t\u00ean l\u00e0"},
    {"text": "\u4eca\u5929\u5929\u6c14"},
    {"text": _STORY},
    {"text": _STORY[: len(_STORY) // 2]},
    {"text": _boxes(20) + "\nBox 21 is"},
    {"text": _boxes(71) + "\nBox 72 is"},
    {"messages": _user("Why is the sky blue?")},
    {"messages": _user("What is the capital of Vietnam? Tell me about it.")},
    {"messages": _user("List the planets of the solar system.")},
    {"messages": _user("Write a short poem about the sea.")},
    {"messages": _user("Explain what a hash table is, and when one would use it.")},
    {"messages": _user("Write a Python function that reverses a string.")},
    {"messages": [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Who are you?"}]},
    {"messages": _user("Here is a story:\n" + _STORY + ".\nSummarise it.")},
    {"messages": _user("Here is a list:\n" + _boxes(12) + "\nRepeat the whole list.")},
    {"messages": _user("Here is a list:\n" + _boxes(50) + "\nRepeat the whole list.")},
    {
        "messages": [
            {"role": "user", "content": "Name a fruit."},
            {"role": "assistant", "content": "An apple is a fruit."},
            {"role": "user", "content": "Tell me more about it, in detail."},
        ]
    },
]

# Flags of make_synthetic_gguf, and the lengths of the prompts to continue.
TINY = [
    ("--heads 4 --kv-heads 4 --seed 11".split(), [1, 5, 33, 129]),  # MHA
    ("--heads 4 --kv-heads 2 --untied --seed 12".split(), [1, 5, 33, 129]),  # GQA
    ("--heads 4 --kv-heads 1 --head-dim 24 --ffn 96 --seed 13".split(), [1, 5, 33, 129]),  # MQA, an odd head size
    ("--heads 9 --kv-heads 3 --hidden 288 --layers 3 --rope-base 100000 --seed 14".split(), [7, 700]),  # as SmolLM2
    ("--type f16 --seed 15".split(), [17]),
    ("--type bf16 --seed 16".split(), [17]),
    ("--type q8_0 --seed 17".split(), [17]),
    ("--type q4_0 --seed 18".split(), [17]),
    ("--type q4_1 --seed 19".split(), [17]),
    ("--type q5_0 --seed 20".split(), [17]),
    ("--type q5_1 --seed 21".split(), [17]),
    ("--type iq4_nl --seed 26".split(), [17]),
    ("--hidden 256 --ffn 768 --type q4_k --finer-type q6_k --seed 27".split(), [17]),  # as Q4_K_M mixes them
    ("--hidden 256 --ffn 768 --type q3_k --finer-type q5_k --seed 28".split(), [17]),
    ("--hidden 256 --ffn 256 --type q6_k --finer-type q8_0 --seed 29".split(), [17]),
    ("--hidden 256 --ffn 256 --type iq4_xs --finer-type f16 --seed 30".split(), [17]),
    ("--hidden 256 --ffn 256 --type q2_k --seed 31".split(), [17]),
    ("--heads 4 --kv-heads 4 --layers 5 --context 2048 --seed 25".split(), [17, 1400]),  # MHA, long enough for lanes of KVPR
    ("--family opt --kv-heads 4 --seed 22".split(), [1, 5, 33, 129]),
    ("--family opt --heads 6 --kv-heads 6 --hidden 96 --ffn 384 --layers 3 --context 600 --seed 23".split(), [7, 500]),
    ("--family opt --kv-heads 4 --type q8_0 --seed 24".split(), [17]),
    # Llama's other forms: biases, Mistral's window (of which chains and decode see the border), stretched positions
    ("--biases --untied --seed 40".split(), [1, 5, 33, 129]),
    ("--window 24 --layers 3 --seed 41".split(), [5, 33, 129]),
    ("--rope-scaling linear --context 512 --seed 42".split(), [33, 300]),
    ("--rope-scaling dynamic --context 512 --seed 43".split(), [33, 300]),
    ("--rope-scaling llama3 --context 512 --seed 44".split(), [33, 300]),
    ("--rope-scaling yarn --context 512 --seed 45".split(), [33, 300]),
    ("--family qwen2 --seed 46".split(), [1, 5, 33, 129]),
    ("--family qwen2 --window 20 --layers 4 --untied --seed 47".split(), [33, 129]),
    ("--family qwen2 --rope-scaling yarn --context 512 --type q8_0 --seed 48".split(), [17, 300]),
    ("--family qwen3 --head-dim 32 --seed 49".split(), [1, 5, 33, 129]),
    ("--family qwen3 --rope-base 1000000 --untied --type q4_0 --seed 50".split(), [17]),
    ("--family phi3 --untied --seed 57".split(), [1, 5, 33, 129]),
    ("--family phi3 --kv-heads 4 --window 24 --layers 3 --untied --seed 58".split(), [5, 33, 129]),  # as Phi-3-mini
    ("--family phi3 --kv-heads 1 --rotated 12 --type q8_0 --seed 59".split(), [17]),  # as Phi-4-mini, of which a part is rotated
    ("--family gemma2 --window 24 --layers 3 --head-dim 24 --seed 51".split(), [1, 5, 33, 129]),
    ("--family gemma3 --window 24 --layers 7 --kv-heads 1 --head-dim 32 --rope-base 1000000 --seed 52".split(), [1, 5, 33, 129]),
    ("--family gemma3 --window 24 --layers 6 --rope-scaling linear --context 512 --type q8_0 --seed 53".split(), [17, 300]),
    ("--family falcon --kv-heads 1 --seed 54".split(), [1, 5, 33, 129]),  # as Falcon-7B
    ("--family falcon --kv-heads 2 --two-norms --untied --seed 55".split(), [1, 5, 33, 129]),  # as Falcon-40B
    ("--family falcon --kv-heads 2 --biases --seed 56".split(), [17]),
    ("--family starcoder2 --rope-base 100000 --seed 60".split(), [1, 5, 33, 129]),  # as StarCoder2-3B
    ("--family starcoder2 --kv-heads 1 --window 24 --layers 3 --untied --seed 61".split(), [5, 33, 129]),
    ("--family starcoder2 --rope-scaling yarn --context 512 --type q8_0 --seed 62".split(), [17, 300]),
]

# Of each family one, with what its layers and its last one do otherwise: windows, caps, scales.
SCORED = [
    "--heads 4 --kv-heads 2 --untied --seed 12".split(),
    "--family opt --kv-heads 4 --seed 22".split(),
    "--family qwen2 --window 20 --layers 4 --untied --seed 47".split(),
    "--family qwen3 --head-dim 32 --seed 49".split(),
    "--family phi3 --kv-heads 4 --window 24 --layers 3 --untied --seed 58".split(),
    "--family gemma2 --window 24 --layers 3 --head-dim 24 --seed 51".split(),
    "--family gemma3 --window 24 --layers 7 --kv-heads 1 --head-dim 32 --rope-base 1000000 --seed 52".split(),
    "--family falcon --kv-heads 2 --two-norms --untied --seed 55".split(),
    "--family starcoder2 --kv-heads 1 --window 24 --layers 3 --untied --seed 61".split(),
]
