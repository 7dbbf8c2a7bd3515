"""deploy/setup: the service of a package that tests bring is not left running.

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
    def calls(self, *, installed):
        with tempfile.TemporaryDirectory() as folder:
            fakes = {**FAKES, "dpkg-query": f'[[ " {installed} " == *" ${{@: -1}} "* ]] && echo "installed "'}
            for name, body in fakes.items():
                path = pathlib.Path(folder, name)
                path.write_text(f"#!/bin/bash\n{body}\n")
                path.chmod(0o755)
            calls = pathlib.Path(folder, "calls")
            calls.touch()
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls)}
            subprocess.run([ROOT / "deploy/setup", "tests"], env=environment, stderr=subprocess.DEVNULL, check=True,
                           timeout=60)
            return calls.read_text().splitlines()

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
