#!/usr/bin/env python3
"""The main of GPU tests (tests/testing/gpu_main.cc), on a driver of our making: what its exit codes and lines say.

usage: gpu_main_test.py SUBJECT DRIVER_FOLDER
"""
import os
import re
import subprocess
import sys
import unittest

LOST = "Subject.LosesTheGpu"


class GpuMainTest(unittest.TestCase):
    def run_subject(self, tests):
        environment = dict(os.environ, LD_LIBRARY_PATH=DRIVER)
        ran = subprocess.run([SUBJECT, f"--gtest_filter={tests}"], env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout

    def test_what_passes_fails_or_is_skipped_is_said_by_exit_code(self):
        for tests, code in (("*.UsesTheGpu:*.ComesLater*", 0), ("*.Fails:*.UsesTheGpu", 1), ("*.Skips", 77),
                            ("*.Skips:*.UsesTheGpu", 0)):
            self.assertEqual(self.run_subject(tests)[0], code, tests)

    def test_a_lost_gpu_fails_the_test_that_lost_it_and_runs_no_other(self):
        code, said = self.run_subject("-*.Fails:*.Skips")
        self.assertEqual(code, 78, said)
        self.assertIn("[       OK ] Subject.UsesTheGpu", said)
        self.assertIn("the driver's error 700 stays", said)
        self.assertEqual(re.findall(r"^\[  FAILED  \] (\S+)", said, re.M), [LOST])
        self.assertEqual(re.findall(r"^\[ NOT RUN  \] (\S+)$", said, re.M),
                         ["Subject.ComesLater", "Some/AnotherSubject.ComesLater/0", "Some/AnotherSubject.ComesLater/1"])

    def test_a_gpu_lost_by_the_last_test_is_said_too(self):
        code, said = self.run_subject(LOST)
        self.assertEqual(code, 78, said)
        self.assertIn(f"[  FAILED  ] {LOST}", said)
        self.assertNotIn("NOT RUN", said)


if __name__ == "__main__":
    SUBJECT, DRIVER = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    unittest.main()
