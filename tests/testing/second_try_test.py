#!/usr/bin/env python3
"""What tests/testing/second_try makes of entries that are green, red, red once, too slow once, or crash."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

SECOND_TRY = pathlib.Path(__file__).parent / "second_try"
# Shell commands; a marker file tells the first run from the later ones.
GREEN = "true"
RED = "false"
RED_ONCE = "test -e {marker} || {{ touch {marker}; false; }}"
RED_TWICE = "test -e {marker}.2 || {{ test -e {marker} && touch {marker}.2; touch {marker}; false; }}"
SLOW_ONCE = "test -e {marker} || {{ touch {marker}; sleep 20; }}"
CRASHED_ONCE = "test -e {marker} || {{ touch {marker}; ulimit -c 0; kill -SEGV $$; }}"
CHECK_ONCE = "test -e {marker} || {{ touch {marker}; echo 'a.cc:7: check failed: rows == 3'; false; }}"
REPORT_ONCE = "test -e {marker} || {{ touch {marker}; echo 'WARNING: ThreadSanitizer: data race (pid=7)'; false; }}"


class SecondTryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)

    def run_entries(self, entries, *arguments):
        """Runs entries {name: shell command}; returns (exit code, output)."""
        lines = []
        for number, (name, command) in enumerate(entries.items()):
            text = command.format(marker=self.build / f"marker-{number}")
            lines.append(f"add_test([=[{name}]=] /bin/sh -c [=[{text}]=])")
            lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES TIMEOUT 5)")
        (self.build / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
        done = subprocess.run(["bash", SECOND_TRY, self.build, *arguments], capture_output=True, text=True, timeout=110)
        return done.returncode, done.stdout

    def later(self, output):
        return [line.split(": ", 1)[1] for line in output.splitlines() if line.startswith("passed on a later try: ")]

    def kept(self, name):
        return self.build / "Testing" / "Temporary" / name

    def test_what_is_green_has_no_later_try(self):
        code, output = self.run_entries({"a": GREEN, "b": GREEN})
        self.assertEqual(code, 0)
        self.assertNotIn("later try", output)
        self.assertFalse(self.kept("LastTest.later.log").exists())

    def test_what_is_always_red_stays_red(self):
        code, output = self.run_entries({"a": GREEN, "b": RED})
        self.assertNotEqual(code, 0)
        self.assertIn("later try 2", output)
        self.assertEqual(self.later(output), [])
        self.assertIn(":b", self.kept("LastTestsFailed.log").read_text())

    def test_what_is_red_once_or_twice_passes_later_and_is_named(self):
        code, output = self.run_entries({"a/once": RED_ONCE, "a/twice": RED_TWICE, "c": GREEN})
        self.assertEqual(code, 0)
        self.assertCountEqual(self.later(output), ["a/once", "a/twice"])
        self.assertIn('"a/once"', self.kept("LastTest.log").read_text(), "the first run's log is kept")
        self.assertTrue(self.kept("LastTest.later.log").exists())
        self.assertFalse(self.kept("LastTestsFailed.log").exists())

    def test_what_passes_later_beside_what_does_not_is_named_and_the_step_is_red(self):
        code, output = self.run_entries({"once": RED_ONCE, "always": RED})
        self.assertNotEqual(code, 0)
        self.assertEqual(self.later(output), ["once"])

    def test_what_takes_too_long_once_passes_later(self):
        code, output = self.run_entries({"slow": SLOW_ONCE})
        self.assertEqual(code, 0)
        self.assertEqual(self.later(output), ["slow"])

    def test_faults_that_load_does_not_make_have_no_later_try(self):
        for entries, why in [
            ({"a": CRASHED_ONCE}, "crashed"),
            ({"a": CHECK_ONCE}, "CHECK"),
            ({"a": REPORT_ONCE}, "sanitizer"),
            ({"golden/a": RED_ONCE}, "golden/a"),
            ({"scheduler/a": RED_ONCE}, "scheduler/a"),
            ({f"a{i}": RED for i in range(6)}, "6 entries"),
        ]:
            with self.subTest(why):
                self.setUp()
                code, output = self.run_entries(entries)
                self.assertNotEqual(code, 0)
                self.assertRegex(output, f"no later try: .*{why}")
                self.assertEqual(self.later(output), [])

    def test_a_run_says_and_keeps_which_machine_it_was(self):
        code, output = self.run_entries({"a": GREEN})
        self.assertEqual(code, 0)
        machine = self.kept("machine.txt").read_text()
        self.assertTrue(output.startswith(machine), "what a reader needs first comes first")
        lines = dict(line.split(": ", 1) for line in machine.splitlines())
        for name in ["CPU", "instruction sets", "cores", "descriptors (soft, hard)", "ptrace_scope", "CAP_NET_ADMIN"]:
            self.assertTrue(lines[name], name)

    def test_each_run_keeps_its_junit_file_and_no_older_one(self):
        self.run_entries({"a/once": RED_ONCE, "b": GREEN})
        first, later = (ElementTree.parse(self.kept(name)).getroot() for name in ["junit.xml", "junit.later.xml"])
        self.assertEqual({case.get("name"): case.get("status") for case in first}, {"a/once": "fail", "b": "run"})
        self.assertEqual([case.get("name") for case in later], ["a/once"])
        code, _ = self.run_entries({"c": GREEN})
        self.assertEqual(code, 0)
        self.assertEqual([case.get("name") for case in ElementTree.parse(self.kept("junit.xml")).getroot()], ["c"])
        self.assertFalse(self.kept("junit.later.xml").exists())

    def test_arguments_go_to_ctest_and_no_entry_is_an_error(self):
        code, output = self.run_entries({"a": GREEN, "b": RED}, "-R", "^a$")
        self.assertEqual(code, 0)
        code, output = self.run_entries({"a": GREEN}, "-R", "nothing")
        self.assertNotEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
