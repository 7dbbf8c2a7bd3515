#!/usr/bin/env python3
"""What .ci/steps.sh does with steps that are green, red, or over their time, and what it says in the end."""
import pathlib
import subprocess
import tempfile
import unittest

STEPS = pathlib.Path(__file__).parents[2] / ".ci" / "steps.sh"


class CiStepsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_steps(self, steps, minutes=5):
        """Runs a script of steps; returns (exit code, output)."""
        script = f"set -euo pipefail\nminutes={minutes}\nsource {STEPS}\n{steps}\nfinish\n"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def part_of(self, output, header):
        """The lines between a header and the next one."""
        lines = output.splitlines()
        at = [i for i, line in enumerate(lines) if line.startswith(f"== {header}")]
        if not at:
            return []
        rest = lines[at[-1] + 1 :]
        return rest[: next((i for i, line in enumerate(rest) if line.startswith("== ")), len(rest))]

    def test_green_steps_end_well(self):
        code, output = self.run_steps("build_step b build true\ntest_step t build echo '100% tests passed, 0 tests failed out of 3'")
        self.assertEqual(code, 0)
        self.assertIn("t: green, 0 s; 100% tests passed, 0 tests failed out of 3", self.part_of(output, "the parts"))
        self.assertEqual(self.part_of(output, "left out"), [])

    def test_a_red_step_is_named_at_the_end_and_the_next_ones_run(self):
        failed = "echo '  1/2 Test  #1: a/b_test ......***Failed  0.1 sec'; exit 8"
        code, output = self.run_steps(
            f"build_step b build true\ntest_step t build bash -c \"{failed}\"\ntest_step u build echo ran on\n"
            "build_step c build false"
        )
        self.assertEqual(code, 1)
        self.assertIn("ran on", output)
        self.assertEqual(self.part_of(output, "red")[-2:], ["t: a/b_test ***Failed", "c: exit code 1"])

    def test_what_was_not_built_is_not_tested(self):
        code, output = self.run_steps("build_step b build false\ntest_step t build echo ran")
        self.assertEqual(code, 1)
        self.assertNotIn("\nran", output)
        self.assertEqual(self.part_of(output, "left out"), ["t: what it needs was not built"])

    def test_no_step_goes_beyond_the_time_and_that_is_not_red(self):
        code, output = self.run_steps(
            "end=$((SECONDS + 3))\nbuild_step b build true\ntest_step t build sleep 30\ntest_step u build echo ran", 7
        )
        self.assertEqual(code, 0)
        self.assertRegex("\n".join(self.part_of(output, "left out")), "t: the 7 minutes were over after [0-9]+ s of it\nu: the 7 minutes were over before it began")
        self.assertNotIn("\nran", output)

    def test_a_test_that_failed_before_its_step_was_cut_is_red(self):
        failed = "echo ' 1/2 Test #1: a/b_test ......***Timeout 0.1 sec'; sleep 30"
        code, output = self.run_steps(f"end=$((SECONDS + 3))\nbuild_step b build true\ntest_step t build bash -c \"{failed}\"")
        self.assertEqual(code, 1)
        self.assertEqual(self.part_of(output, "red")[-1:], ["t: a/b_test ***Timeout"])

    def test_a_step_that_ends_as_if_its_time_were_over_before_it_is_is_red(self):
        code, output = self.run_steps("build_step b build bash -c 'exit 124'")
        self.assertEqual(code, 1)

    def test_what_passed_on_a_later_try_is_named_at_the_end(self):
        said = r"'passed on a later try: a/b_test\npassed on a later try: c_test\n'"
        code, output = self.run_steps(f"build_step b build true\ntest_step t build printf {said}\ntest_step u build true")
        self.assertEqual(code, 0)
        self.assertEqual(self.part_of(output, "red once"), ["t: a/b_test", "t: c_test"])

    def test_what_tests_could_not_do_here_is_gathered(self):
        log = self.folder / "build" / "Testing" / "Temporary"
        log.mkdir(parents=True)
        (log / "LastTest.log").write_text("did not run here: A.B: no GPU\ndid not run here: A.B: no GPU\n")
        code, output = self.run_steps("build_step b build true\ntest_step t build echo 'Test #2: k/x_test@gpu ....***Skipped'")
        self.assertEqual(self.part_of(output, "what this machine"), ["A.B: no GPU", "k/x_test@gpu: it needs a GPU"])


if __name__ == "__main__":
    unittest.main()
