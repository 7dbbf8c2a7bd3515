#!/usr/bin/env python3
"""Checks that the product says no log line while it holds a lock: whoever waits for the lock would wait for the log, too.

A lock is held behind a MutexLock to the end of its block, between .Lock() and .Unlock(), and in a function that is
declared RUNAHEAD_REQUIRES. No call of a function Log* of another file may stand there, nor one of a function of the
same file that logs. What a LogLater collects is said after the lock (server/base/log_later.h).

usage: log_under_lock_test.py ROOT         check the tree at ROOT; exit 1 and one line per violation when there are any
       log_under_lock_test.py --self-test  check that every rule can fail
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import tree_check  # noqa: E402, beside this file

SOURCE_FOLDERS = ("kernels", "scheduler", "server", "worker", "client")
SOURCE = (".h", ".cc", ".cu", ".cuh")
# The log itself, whose lines are put together under locks of its own.
LOG = ("server/base/logging.h", "server/base/logging.cc", "server/base/log_writer.cc")

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
# What changes where we are, or is of interest there.
TOKEN = re.compile(r"(?P<block>[{};])"
                   r"|\bMutexLock\s+\w+\s*[({]\s*[^;]*;"
                   r"|(?P<lock>\.Lock\(\))|(?P<unlock>\.Unlock\(\))"
                   r"|(?<![\w.>])(?P<call>(?:::)?\w+)\(")
FUNCTION = re.compile(r"((?:\w+::)*~?\w+)\s*\(")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:[A-Z_]+\b\s*(?:\([^)]*\)\s*)?)?((?:\w+::)*\w+)[^()]*$")
REQUIRES = "RUNAHEAD_REQUIRES"
# A declaration ends with a semicolon: its name, its arguments and what follows them up to the annotation.
DECLARED = re.compile(r"(~?\w+)\s*\((?:[^()]|\([^()]*\))*\)[\w\s]*" + REQUIRES)
# By its name; what a file defines itself is judged by what it does.
LOGS = re.compile(r"^(?:::)?Log(?!(?:Enabled|Later)$)(?:[A-Z]\w*)?$")
# These take a function and run it later, without the lock.
LATER = re.compile(r"\b(?:Post|push_back)\(\[[^\]]*\]")


def code_of(text):
    """`text` without comments and literals; every line stays where it is."""
    return NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


class Block:
    def __init__(self, kind, name, holds):
        self.kind, self.name, self.holds = kind, name, holds  # name: of the class or function around


class Call:
    """A call, in `function`, which is "Class::Name" or "Name"."""

    def __init__(self, name, line, function, under_lock):
        self.name, self.line, self.function, self.under_lock = name, line, function, under_lock


def last_two(name):
    return "::".join(name.split("::")[-2:])


class Reader:
    """Reads one file from the top: which calls stand where, and which functions are declared to need a lock."""

    def __init__(self, text, needs_lock):
        self.code = code_of(text)
        self.needs_lock = needs_lock  # functions that other files declare so
        self.blocks = [Block("file", "", False)]
        self.calls = []
        self.declared = set()
        self.defined = set()

    def read(self):
        begin = 0  # of the statement that is being read
        for match in TOKEN.finditer(self.code):
            block = self.blocks[-1]
            sign = match.group("block")
            if sign == "{":
                self.blocks.append(self.opened(self.code[begin:match.start()]))
            elif sign == "}":
                if len(self.blocks) > 1:
                    self.blocks.pop()
            elif sign == ";":
                self.declaration(self.code[begin:match.start()])
            elif match.group("unlock"):
                block.holds = False
            elif match.group("call"):
                self.call(match)
            else:
                block.holds = True
            if sign:
                begin = match.end()
            elif not match.group("call") and not match.group("lock") and not match.group("unlock"):
                begin = match.end()  # a MutexLock, with its semicolon
        return self

    def opened(self, head):
        """The block that `head` opens."""
        around = self.blocks[-1]
        if around.kind == "function":
            later = LATER.search(head)
            # What runs later is no part of what the function does.
            name = around.name + ", later" if later else around.name
            return Block("function", name, REQUIRES in head or (around.holds and not later))
        of_class = CLASS.search(head)
        if of_class and "enum" not in head:
            return Block("class", of_class.group(1).split("::")[-1], False)
        found = FUNCTION.search(re.sub(r"\b__attribute__\s*\(\(.*?\)\)|\boperator\s*\(\)", "", head))
        if found is None or "namespace" in head:
            return Block("scope" if "namespace" in head else around.kind, around.name, False)
        name = found.group(1)
        if around.kind == "class":
            name = around.name + "::" + name
        name = last_two(name)
        self.defined.add(name)
        return Block("function", name, REQUIRES in head or name in self.needs_lock)

    def declaration(self, text):
        if REQUIRES not in text:
            return
        found = DECLARED.search(text)
        if found:
            around = self.blocks[-1]
            self.declared.add((around.name + "::" if around.kind == "class" else "") + found.group(1))

    def call(self, match):
        block = self.blocks[-1]
        if block.kind == "function":
            line = self.code.count("\n", 0, match.start()) + 1
            self.calls.append(Call(match.group("call"), line, block.name, block.holds))


class Checker:
    def __init__(self, root):
        self.root = root
        self.files = []
        for top in SOURCE_FOLDERS:
            for folder, subfolders, names in os.walk(os.path.join(root, top)):
                subfolders.sort()
                self.files += [os.path.relpath(os.path.join(folder, n), root) for n in sorted(names) if n.endswith(SOURCE)]

    def run(self):
        texts = {}
        for path in self.files:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                texts[path] = file.read()
        needs_lock = set().union(*(Reader(text, set()).read().declared for text in texts.values()))
        violations = []
        for path, text in texts.items():
            if path not in LOG:
                violations += FileCheck(path, Reader(text, needs_lock).read()).run()
        return violations


class FileCheck:
    def __init__(self, path, read):
        self.path = path
        self.calls = read.calls
        self.defined = read.defined
        self.saying = {}  # functions of this file that log: in which line

    def run(self):
        grown = True
        while grown:
            before = len(self.saying)
            for call in self.calls:
                if self.logs(call) or self.own(call) in self.saying:
                    self.saying.setdefault(call.function, call.line)
            grown = len(self.saying) > before
        locked = {call.function for call in self.calls if self.logs(call) and call.under_lock}
        violations = []
        for call in self.calls:
            own = self.own(call)
            if call.under_lock and self.logs(call):
                violations.append(f"{self.path}:{call.line}: {call.function} logs while it holds a lock")
            elif call.under_lock and own in self.saying and own not in locked:  # those are complained of already
                violations.append(f"{self.path}:{call.line}: {call.function} holds a lock and calls {own}, which logs "
                                  f"in line {self.saying[own]}")
        return violations

    def logs(self, call):
        return LOGS.match(call.name) and self.own(call) is None

    def own(self, call):
        """The function of this file that `call` calls, or None."""
        own_class = call.function.rpartition("::")[0]
        return next((name for name in (f"{own_class}::{call.name}", call.name) if name in self.defined), None)


CLEAN = {
    "server/base/logging.cc": "void Log() {\n  MutexLock lock(mu_);\n  LogInfo(1);\n}\n",
    "server/router/seats.h": "class Seats {\n  void Tell(int seat) const RUNAHEAD_REQUIRES(mu_);\n"
                             "  void Say() RUNAHEAD_EXCLUDES(mu_);\n  Mutex mu_;\n};\n",
    "server/router/seats.cc": "void Seats::Say() {\n  LogLater later;\n  {\n    MutexLock lock(mu_);\n    if (gone) return;\n"
                              '    later.Info("seats", "LogInfo(");  // LogInfo(\n  }\n  LogInfo("seats", "said");\n}\n'
                              "namespace {\nvoid Loud() { LogError(1); }\n}\n",
    "worker/kv/lane.cc": "void Lane::Go() {\n  MutexLock lock(mu_);\n  thread_->Post([this] { Pump(); });\n}\n"
                         "void Lane::Pump() { LogInfo(1); }\n"
                         "void Lane::Stop() {\n  MutexLock lock(mu_);\n  Soon();\n}\n"
                         "void Lane::Soon() { thread_->Post([this] { Pump(); }); }\n",
    "server/base/log_later.h": "class LogLater {\n  ~LogLater() { Log(1); }\n};\n",
    "worker/kv/store.cc": "Store::Store() : a_{1} {}\nvoid Store::Run() {\n  mu_.Lock();\n  mu_.Unlock();\n  LogInfo(1);\n}\n",
}

# (file, what is appended to it, what the complaint must say)
BROKEN = [
    ("server/router/seats.cc", "void Seats::Seat() {\n  MutexLock lock(mu_);\n  LogInfo(1);\n}",
     "server/router/seats.cc:15: Seats::Seat logs while it holds a lock"),
    ("server/router/seats.cc", "void Seats::Seat() {\n  if (a) {\n    MutexLock lock(mu_);\n    for (;;) {\n LogError(1);\n}\n}\n}",
     "Seats::Seat logs while"),
    ("server/router/seats.cc", "void Seats::Seat() {\n  MutexLock lock(mu_);\n  Loud();\n}", "calls Loud, which logs in line 11"),
    ("server/router/seats.cc", "void Seats::Seat() {\n  MutexLock lock(mu_);\n  Say();\n}", "calls Seats::Say, which logs"),
    ("server/router/seats.cc", "void Seats::Tell(int seat) const {\n  LogWarning(1);\n}", "Seats::Tell logs while"),
    ("server/router/seats.cc", "void Seats::Do() {\n  const auto f = [&]() RUNAHEAD_REQUIRES(mu_) { Log(1); };\n}",
     "Seats::Do logs while"),
    ("server/router/seats.h", "class Other {\n  void A() RUNAHEAD_REQUIRES(mu_) { LogDebug(1); }\n};", "Other::A logs while"),
    ("server/router/seats.cc", "void Seats::Seat() {\n  MutexLock lock(mu_);\n  LogRequest(record);\n}", "Seats::Seat logs while"),
    ("worker/kv/lane.cc", "void Lane::Run() {\n  MutexLock lock(mu_);\n  Twice();\n}\nvoid Lane::Twice() { Pump(); }",
     "calls Lane::Twice, which logs in line 15"),
    ("worker/kv/store.cc", "void Store::Run2() {\n  mu_.Lock();\n  LogInfo(1);\n}", "Store::Run2 logs while"),
]


if __name__ == "__main__":
    sys.exit(tree_check.main(sys.argv[1:], __doc__, lambda root: Checker(root).run(), CLEAN, BROKEN))
