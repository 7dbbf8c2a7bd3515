"""What the processes of a real cluster expose: what docs/metrics.md says of their role and nothing else, under load too.

usage: metrics_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import live  # noqa: E402, beside this file
import metric_page  # noqa: E402

MAKE_MODEL = pathlib.Path(sys.argv.pop()).resolve()
RUNAHEAD = pathlib.Path(sys.argv.pop()).resolve()
ROLES = {"router": "Router", "prefill-0": "Prefill worker", "prefill-1": "Prefill worker", "decode-0": "Decode worker",
         "gateway": "Gateway"}
KEYS = "Router with API keys"
# The unit that a name ends in, before what counters end in; or a count of something, or a state.
UNITS = re.compile(r"_(seconds|bytes|bytes_per_second|ratio|tokens|info)$")
COUNTS = re.compile(r"_(size|fds|in_flight|depth|paths|edges|workers|ejected|suspected|leases|slots|requests|connections|arriving|budget|limit)$")
ENDS = ("_bucket", "_sum", "_count")
# Classes of prompts that appear with the first such prompt.
LONG = {"le16k", "le64k", "more"}
SERIES = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def exposed(page):
    """{name: (type, {label: values})} and {name: help} of a page."""
    kinds, helps, labels = {}, {}, {}
    for line in page.split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
            labels[name] = {}
        elif line.startswith("# HELP "):
            _, _, name, helps[name] = line.split(" ", 3)
        elif line:
            name, said, _ = SERIES.fullmatch(line).groups()
            if name not in labels:
                name = next(name.removesuffix(end) for end in ENDS if name.removesuffix(end) in labels)
            for label, value in LABEL.findall(said or ""):
                if label != "le":
                    labels[name].setdefault(label, set()).add(value)
    return {name: (kinds[name], labels[name]) for name in kinds}, helps


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = cls.model = pathlib.Path(folder, "model.gguf")
        subprocess.run([MAKE_MODEL, "--context", "2048", model], check=True, timeout=live.PATIENCE)
        cls.cluster = cls.enterClassContext(
            live.Cluster(folder, RUNAHEAD, "--model", model, "--prefill", 2, "--decode", 1, "--dtype", "f32",
                         "--device", "cpu"))
        live.until(lambda: 'runahead_edges{state="up"} 1' in cls.cluster.page("router"), "the edge of the line is up")
        cls.before = {name: cls.cluster.page(name) for name in ROLES}
        for tokens in (3, 300, 1100):
            assert cls.cluster.generate(tokens, "--max-tokens", "3") == 0
        cls.cluster.generate(5000, "--max-tokens", "3")  # too long
        cls.after = {name: cls.cluster.page(name) for name in ROLES}

    def test_each_role_exposes_what_the_page_lists_for_it_and_nothing_else(self):
        page = metric_page.families()
        self.assertEqual(set(page), {*ROLES.values(), KEYS, "Both kinds of workers", "Router and workers", "All processes"})
        for process, section in ROLES.items():
            shared = {**({} if process in ("router", "gateway") else page["Both kinds of workers"]),
                      **({} if process == "gateway" else page["Router and workers"]), **page["All processes"]}
            promised = {**shared, **page[section]}
            found, _ = exposed(self.after[process])
            self.assertEqual(sorted(found), sorted(promised), process)
            for name, (kind, labels) in found.items():
                with self.subTest(f"{process}: {name}"):
                    self.assertEqual(kind, promised[name][0])
                    self.assertEqual(labels.keys(), promised[name][1].keys())
                    for label, values in promised[name][1].items():
                        if label == "prompt_class":
                            values = values - LONG
                        if values:
                            self.assertEqual(labels[label], values, label)

    def test_a_router_with_api_keys_exposes_theirs_besides(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        made = json.loads(subprocess.run([RUNAHEAD, "keys", "new", "alice", "--json"], stdout=subprocess.PIPE, check=True,
                                         timeout=live.PATIENCE).stdout)
        keys = folder / "api-keys.yaml"
        keys.write_text(f"keys: [{{name: {made['name']}, hash: {made['hash']}}}]")
        cluster = self.enterContext(live.Cluster(folder, RUNAHEAD, "--model", self.model, "--device", "cpu", "--api-keys",
                                                 keys))
        self.assertEqual(cluster.generate(3, "--max-tokens", "3", "--api-key", made["key"]), 0)
        found, helps = exposed(cluster.page("router"))
        page = metric_page.families()
        self.assertEqual(sorted(found), sorted({**page["Router"], **page["Router and workers"], **page["All processes"], **page[KEYS]}))
        for name, (kind, labels) in page[KEYS].items():
            with self.subTest(name):
                self.assertRegex(helps[name], r"^[A-Z0-9].{10,}$")
                self.assertEqual(found[name][0], kind)
                self.assertEqual(found[name][1], {label: values or {"alice"} for label, values in labels.items()})

    def test_every_metric_says_what_it_is_and_in_which_unit(self):
        for process in ROLES:
            found, helps = exposed(self.after[process])
            for name, (kind, _) in found.items():
                with self.subTest(f"{process}: {name}"):
                    self.assertRegex(helps.get(name, ""), r"^[A-Z0-9].{10,}$")
                    self.assertEqual(kind == "counter", name.endswith("_total"))
                    if kind != "counter":  # a counter without a unit counts what its name says
                        self.assertTrue(UNITS.search(name) or COUNTS.search(name))

    def test_requests_add_no_series(self):
        def series(page):
            return sorted(line.rsplit(" ", 1)[0] for line in page.split("\n") if line and not line.startswith("#"))
        for process in ROLES:
            self.assertEqual(series(self.before[process]), series(self.after[process]), process)

    def test_a_fresh_process_has_few_series(self):
        for process in ROLES:
            lines = [line for line in self.before[process].split("\n") if line and not line.startswith("#")]
            print(f"{process}: {len(lines)} series")
            self.assertLess(len(lines), 1000, process)
            self.assertGreater(len(lines), 20, process)

    def test_decode_receives_what_its_leases_expect(self):
        def value(kind):
            page = self.cluster.page("decode-0")
            return float(re.search(rf'^runahead_handoff_{kind}_bytes_total{{kind="kv"}} (\S+)$', page, re.MULTILINE)[1])
        live.until(lambda: value("expected") == value("received") > 0, "all has been handed off")

    def test_a_chain_says_how_even_it_was(self):
        for process in ("prefill-0", "prefill-1"):
            ratio = re.search(r"^runahead_prefill_imbalance_ratio (\S+)$", self.after[process], re.MULTILINE)
            self.assertGreaterEqual(float(ratio[1]), 1)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool (deploy/setup tests installs it)")
    def test_promtool_finds_no_fault(self):
        for process in ROLES:
            with self.subTest(process):
                done = subprocess.run(["promtool", "check", "metrics"], input=self.after[process], text=True, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=live.PATIENCE)
                self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
