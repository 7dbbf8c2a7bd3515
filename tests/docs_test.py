#!/usr/bin/env python3
"""Checks what pages and comments name against the tree: links, paths, names of the code, metrics and flags.

usage: docs_test.py ROOT         check the tree at ROOT; exit 1 and one line per violation when there are any
       docs_test.py --self-test  check that every rule below can fail
"""
import fnmatch
import os
import re
import sys

sys.dont_write_bytecode = True
import tree_check  # noqa: E402, beside this file

TOP = (".ci", "client", "deploy", "docs", "examples", "kernels", "proto", "scheduler", "server", "tests", "worker")
SOURCE = (".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".in", ".cmake", ".txt", ".sh", ".json", "")
CODE = (".h", ".cc", ".cu", ".cuh", ".proto")

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
BACKTICKS = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^(?:%s)/[\w./*-]*$" % "|".join(map(re.escape, TOP)))
# In a comment a path counts where it ends as a file does: prose has slashes, too.
COMMENT_PATH = re.compile(r"\b(?:%s)/[\w./-]*\.(?:h|cc|cu|cuh|py|md|proto)\b" % "|".join(map(re.escape, TOP)))
FILE = re.compile(r"^[\w-]+\.(?:h|cc|cu|cuh|py|proto)$")
# Something that the code declares: PrefillStage, EdgeCore::Die, kSilence, planning_.
NAME = re.compile(r"^(?:k[A-Z]\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*|\w+_)$")
QUALIFIED = re.compile(r"^([A-Z]\w+)(?:::|\.)([A-Za-z]\w*)$")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
METRIC = re.compile(r"\brunahead_[a-z0-9_]+")
METRIC_IN_CODE = re.compile(r'"(runahead_[a-z0-9_]+)"')
METRIC_SOURCE = re.compile(r"metrics[^/]*$|/process_collector\.cc$")
METRICS_PAGE = "docs/metrics.md"
# Programs of others, whose flags are theirs.
FOREIGN = re.compile(r"\b(?:ctest|cmake|docker|grpc_tools|kubectl|openssl|pip|protoc|smg|systemctl|Ofast)\b")


def slug(heading):
    """The anchor that hosts of Markdown give a heading."""
    text = re.sub(r"[`*]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.files = []
        for folder, subfolders, names in os.walk(root):
            top = folder == root
            subfolders[:] = sorted(s for s in subfolders if (s in TOP if top else not s.startswith((".", "__"))))
            self.files += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names)]
        self.known = set(self.files) | {os.path.dirname(path) for path in self.files}
        self.base_names = {os.path.basename(path) for path in self.files}
        self.pages = [path for path in self.files if path.endswith(".md")]
        self.code = {path: self.read(path) for path in self.files if path.endswith(CODE)}
        self.words = {path: set(re.findall(r"\w+", text)) for path, text in self.code.items()}
        self.all_words = set().union(*(words for path, words in self.words.items() if not path.startswith("tests/")))
        self.test_words = set().union(*(words for path, words in self.words.items() if path.startswith("tests/")))
        self.all_text = "\n".join(
            self.read(path) for path in self.files if os.path.splitext(path)[1] in SOURCE and path != "tests/docs_test.py")

    def complain(self, path, line, message):
        self.violations.append(f"{path}:{line}: {message}")

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self):
        for page in self.pages:
            self.check_page(page)
        for path, text in self.code.items():
            self.check_comments(path, text)
        self.check_metrics()
        self.check_reach()
        return self.violations

    def check_page(self, page):
        in_block = False
        for number, line in enumerate(self.read(page).split("\n"), 1):
            if line.lstrip().startswith("```"):
                in_block = not in_block
                continue
            for target in LINK.findall(line):
                self.check_link(page, number, target)
            # A changelog says what names were.
            if page == "CHANGELOG.md":
                continue
            for quoted in [] if in_block else BACKTICKS.findall(line):
                self.check_quoted(page, number, quoted, "tests/" in line)
            for flags in [line] if in_block else BACKTICKS.findall(line):
                self.check_flags(page, number, flags)

    def check_link(self, page, number, target):
        if re.match(r"[a-z]+:", target):
            return
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if path not in self.known:
            self.complain(page, number, f"the link {target} leads nowhere")
        elif anchor and path.endswith(".md"):
            headings = re.findall(r"^#+ (.*)$", self.read(path), re.MULTILINE)
            if anchor not in map(slug, headings):
                self.complain(page, number, f"{path} has no heading for #{anchor}")

    def check_quoted(self, page, number, quoted, with_tests):
        """Names of tests count in lines that say where they are: `with_tests`."""
        word = quoted.split(" ")[0]
        if PATH.match(word):
            self.check_path(page, number, word.rstrip("/"))
        elif FILE.match(quoted) and quoted not in self.base_names:
            self.complain(page, number, f"there is no file {quoted}")
        elif qualified := QUALIFIED.match(quoted.removesuffix("()")):
            files = (words for path, words in self.words.items() if with_tests or not path.startswith("tests/"))
            if not any(set(qualified.groups()) <= words for words in files):
                self.complain(page, number, f"no file of the code has {quoted}")
        elif NAME.match(quoted) and quoted not in self.all_words and not (with_tests and quoted in self.test_words):
            self.complain(page, number, f"the code has no {quoted}")

    def check_path(self, path, number, named):
        if "*" in named:
            found = fnmatch.filter(self.known, named)
        else:
            found = named in self.known
        if not found:
            self.complain(path, number, f"there is no {named}")

    def check_flags(self, page, number, text):
        if FOREIGN.search(text):
            return
        for flag in FLAG.findall(text):
            declared = f'"{flag.replace("-", "_")}"'
            if f"--{flag}" not in self.all_text and declared not in self.all_text:
                self.complain(page, number, f"nothing takes --{flag}")

    def check_comments(self, path, text):
        for number, line in enumerate(text.split("\n"), 1):
            _, slashes, comment = line.partition("//")
            for named in COMMENT_PATH.findall(comment) if slashes else ():
                if named not in self.known and "tests/" + named not in self.known:
                    self.complain(path, number, f"there is no {named}")

    def check_metrics(self):
        counted = set()
        for path, text in self.code.items():
            if METRIC_SOURCE.search(path) and not path.startswith("tests/"):
                counted |= set(METRIC_IN_CODE.findall(text))
        listed = set()
        for page in self.pages:
            for number, line in enumerate(self.read(page).split("\n"), 1):
                for name in METRIC.findall(line):
                    name = re.sub(r"_(bucket|sum|count)$", "", name)
                    if page == METRICS_PAGE:
                        listed.add(name)
                    if name not in counted:
                        self.complain(page, number, f"nothing counts {name}")
        for name in sorted(counted - listed):
            self.complain(METRICS_PAGE, 1, f"{name} is counted and not listed here")

    def check_reach(self):
        """Every page can be come to from the README."""
        reached, left = set(), ["README.md"]
        while left:
            page = left.pop()
            if page in reached or page not in self.known:
                continue
            reached.add(page)
            targets = [target.partition("#")[0] for target in LINK.findall(self.read(page))]
            left += [os.path.normpath(os.path.join(os.path.dirname(page), t)) for t in targets if t.endswith(".md")]
        for page in self.pages:
            if page not in reached:
                self.complain(page, 1, "no link from README.md leads here")


CLEAN = {
    "README.md": "See [how](docs/how.md#a-heading-of-its-own) and `docs/how.md`. [Metrics](docs/metrics.md), [site](https://a.b).\n",
    "docs/how.md": "# How\n## A heading, `of` its own\n`worker/kv/store.h` has `KvStore::Release`, in `worker/kv/`; `store.h` too, and "
                   "`kLeaseLife`, `KvStore`, `leases_`.\n```\nrunahead up --max-batch 3\nctest --no-such\n```\n`worker/kv/store.*` takes "
                   "`--max-batch N`; `TestOfStore` in `tests/worker/kv/store_test.cc`.\n",
    "docs/metrics.md": "| `runahead_kv_leases` | `runahead_kv_leases_count` |\n",
    "worker/kv/store.h": "// As worker/kv/store.cc says.\nclass KvStore { void Release(); int leases_; };\nconstexpr int kLeaseLife = 30;\n",
    "worker/kv/store.cc": '#include "worker/kv/store.h"\n',
    "worker/options.cc": 'schema.Int("max_batch");\n',
    "tests/worker/kv/store_test.cc": "// See worker/kv/store_test.cc.\nTEST(TestOfStore, Works) {}\n",
    "worker/decode_metrics.cc": 'registry.AddGauge("runahead_kv_leases");\n',
}

# (file, what is appended to it, what the complaint must say)
BROKEN = [
    ("docs/how.md", "[gone](gone.md)", "leads nowhere"),
    ("docs/how.md", "[gone](../README.md#nothing)", "has no heading"),
    ("docs/how.md", "`worker/kv/gone.h`", "there is no worker/kv/gone.h"),
    ("docs/how.md", "`worker/kv/gone_*`", "there is no worker/kv/gone_*"),
    ("docs/how.md", "`worker/gone/`", "there is no worker/gone"),
    ("docs/how.md", "`gone.h`", "there is no file gone.h"),
    ("docs/how.md", "`KvGone`", "the code has no KvGone"),
    ("docs/how.md", "`TestOfStore`", "the code has no TestOfStore"),
    ("docs/how.md", "`kGone`", "the code has no kGone"),
    ("docs/how.md", "`gone_`", "the code has no gone_"),
    ("docs/how.md", "`KvStore::Gone`", "no file of the code has KvStore::Gone"),
    ("docs/how.md", "`--gone`", "nothing takes --gone"),
    ("docs/how.md", "```\nrunahead up --gone\n```", "nothing takes --gone"),
    ("docs/how.md", "`runahead_gone_total`", "nothing counts runahead_gone_total"),
    ("docs/metrics.md", "`runahead_gone_total`", "nothing counts runahead_gone_total"),
    ("docs/lonely.md", "", "no link from README.md"),
    ("worker/kv/store.cc", "// See worker/kv/gone.h.", "there is no worker/kv/gone.h"),
    ("worker/decode_metrics.cc", 'registry.AddGauge("runahead_new");', "docs/metrics.md:1: runahead_new is counted"),
]


if __name__ == "__main__":
    sys.exit(tree_check.main(sys.argv[1:], __doc__, lambda root: Checker(root).run(), CLEAN, BROKEN))
