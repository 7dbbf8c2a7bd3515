"""deploy/setup: a mirror is asked three times, and the service of a package that tests bring is not left running.

Run with an apt-get and its like that only note how they were called; all else is this machine's.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKES = {"id": "echo 0", "apt-get": 'echo "apt-get $*" >>"$CALLS"', "update-rc.d": 'echo "update-rc.d $*" >>"$CALLS"',
         "install": "cat >/dev/null", "rm": "exec /bin/rm -f \"$2\""}


class SetupTest(unittest.TestCase):
    def run_setup(self, *, installed, failures=0):
        """How it ended, and what was called, where apt-get fails that often before it works."""
        with tempfile.TemporaryDirectory() as folder:
            fail = f'[[ $(grep -c apt-get "$CALLS") -gt {failures} ]] || {{ echo "E: no mirror"; exit 100; }}'
            fakes = {**FAKES, "apt-get": f"{FAKES['apt-get']}\n{fail}", "dpkg-query": f'[[ " {installed} " == *" ${{@: -1}} "* ]] && echo "installed "'}
            for name, body in fakes.items():
                path = pathlib.Path(folder, name)
                path.write_text(f"#!/bin/bash\n{body}\n")
                path.chmod(0o755)
            calls = pathlib.Path(folder, "calls")
            calls.touch()
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls),
                           "RUNAHEAD_SETUP_PAUSE": "0"}
            done = subprocess.run([ROOT / "deploy/setup", "tests"], env=environment, stderr=subprocess.PIPE, text=True,
                                  timeout=60)
            return done, calls.read_text().splitlines()

    def calls(self, *, installed):
        done, calls = self.run_setup(installed=installed)
        self.assertEqual(done.returncode, 0, done.stderr)
        return calls

    def test_a_mirror_that_fails_is_asked_three_times(self):
        done, calls = self.run_setup(installed="", failures=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([" update" in call for call in calls[:4]], [True, True, True, False], calls)
        self.assertEqual(done.stderr.count("trying again: E: no mirror"), 2)

    def test_a_mirror_that_stays_away_is_an_error_that_shows_what_apt_get_said(self):
        done, calls = self.run_setup(installed="", failures=99)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(calls), 3, calls)
        self.assertIn("E: no mirror\ndeploy/setup: 'apt-get update' failed three times", done.stderr)

    def test_another_apt_get_is_waited_for(self):
        self.assertIn("DPkg::Lock::Timeout=", self.calls(installed="")[0])

    def test_prometheus_is_disabled_after_it_was_installed(self):
        *_, before, last = self.calls(installed="")
        self.assertIn(" install ", before)
        self.assertIn(" prometheus ", before)
        self.assertEqual(last, "update-rc.d prometheus disable")

    def test_one_that_was_there_before_is_left_alone(self):
        calls = self.calls(installed="prometheus")
        self.assertEqual(len(calls), 2, calls)  # update, install
        self.assertNotIn("prometheus", calls[1])

    def test_nothing_is_done_where_all_is_there(self):
        self.assertEqual(self.calls(installed="libgtest-dev libgmock-dev libbenchmark-dev prometheus python3-yaml python3-grpcio "
                                              "python3-protobuf"), [])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
