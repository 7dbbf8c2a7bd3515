"""What the tests of examples/ share: an interpreter with gRPC, a model, a cluster, and what it answers."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))
import live  # noqa: E402
import page  # noqa: E402, beside this file
import tools  # noqa: E402

# So long that no answer of LONG tokens ends by itself before it is cancelled.
CONTEXT, LONG = 65536, 60000


def rerun_with_grpc(what):
    """Goes on in a Python that has gRPC: this one, or Debian's. Ends the test as not run where neither has it."""
    for python in (sys.executable, "/usr/bin/python3"):
        asked = subprocess.run([python, "-c", "import grpc, google.protobuf"], capture_output=True, check=False)
        if asked.returncode == 0:
            if python != sys.executable:
                os.execv(python, [python, *sys.argv])
            return
    print(f"did not run here: {what}: no Python with gRPC (deploy/setup tests installs python3-grpcio)")
    sys.exit(tools.SKIPPED)


def skip(test, what):
    print(f"did not run here: {what}")
    test.skipTest(what)


class ClusterTest(unittest.TestCase):
    """`runahead up` with two prefill workers and one that decodes, and the arguments MORE. A prompt has a chain however
    often it is asked. The last two arguments of the program are RUNAHEAD and MAKE_SYNTHETIC_GGUF."""

    MORE = ()

    @classmethod
    def setUpClass(cls):
        cls.runahead, make_model = (pathlib.Path(path).resolve() for path in ARGUMENTS)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        page.stand(cls.folder)
        cls.model = cls.folder / "model.gguf"
        subprocess.run([make_model, "--context", str(CONTEXT), cls.model], check=True, timeout=live.PATIENCE)
        cls.prepare()
        cls.cluster = cls.enterClassContext(live.Cluster(cls.folder, cls.runahead, "--model", cls.model, "--prefill", "2",
                                                         "--decode", "1", "--threads", "1", "--dtype", "f32",
                                                         "--known-beginnings", "off", *cls.MORE))
        cls.environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

    @classmethod
    def prepare(cls):
        """Before anything serves the model."""

    def shell(self, command, **more):
        """What a command of the page writes, run in `folder` with this test's router."""
        command = command.replace(page.ROUTER, self.cluster.router)
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env={**self.environment, **more}, text=True,
                              capture_output=True, timeout=live.PATIENCE * 4, check=False)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def answer(self, *flags, max_tokens):
        """What `runahead generate --json` gives, greedy."""
        command = [self.runahead, "generate", "--router", self.cluster.router, "--temperature", "0", "--json",
                   "--max-tokens", str(max_tokens), *flags]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=live.PATIENCE, check=True).stdout)


def main():
    global ARGUMENTS
    ARGUMENTS = sys.argv[-2:]
    del sys.argv[-2:]
    unittest.main(verbosity=2)
