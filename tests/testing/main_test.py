#!/usr/bin/env python3
"""The main of tests (tests/testing/main.cc): what its exit codes and last lines say.

usage: main_test.py SUBJECT
"""
import os
import subprocess
import sys
import unittest


class MainTest(unittest.TestCase):
    def run_subject(self, *arguments):
        ran = subprocess.run([SUBJECT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=60, check=False)
        return ran.returncode, ran.stdout

    def test_what_passes_fails_or_is_skipped_is_said_by_exit_code(self):
        for tests, code in (("*.Passes", 0), ("*.Skips:*.Passes", 77), ("*.Fails:*.Passes", 1),
                            ("*.Fails:*.Skips", 1)):
            self.assertEqual(self.run_subject(f"--gtest_filter={tests}")[0], code, tests)

    def test_what_was_skipped_is_listed_with_its_reason(self):
        listed = "did not run here: Subject.Skips: as it is meant to"
        self.assertIn(listed, self.run_subject("--gtest_filter=*.Skips:*.Passes")[1].splitlines())
        self.assertNotIn(listed, self.run_subject("--gtest_filter=*.Passes")[1])

    def test_a_source_has_its_own_tests_only(self):
        self.assertEqual(self.run_subject("--source=testing/main_subject.cc", "--gtest_filter=-*.Fails:*.Skips")[0], 0)
        # Of which a filter may name one, as the process that a death test begins is given its own.
        narrowed = self.run_subject("--source=testing/main_subject.cc", "--gtest_filter=Subject.Passes")
        self.assertEqual(narrowed[0], 0, narrowed[1])
        code, said = self.run_subject("--source=testing/no_such_test.cc")
        self.assertEqual(code, 2, said)


if __name__ == "__main__":
    SUBJECT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
