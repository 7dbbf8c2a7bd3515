"""What deploy/quickstart and tests/run build: the CUDA plugin only where it is of use, and never twice.

The scripts run in a copy of the tree in which everything they call only notes how it was called.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def write_script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + body)
    path.chmod(0o755)


class Tree(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def built(self, script, *, cached, driver):
        """The arguments of deploy/build, or None where it was not reached."""
        (self.root / "deploy").mkdir()
        (self.root / script).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / script, self.root / script)
        write_script(self.root / "deploy/setup", "exit 0")
        write_script(self.root / "deploy/has_gpu_driver", f"exit {0 if driver else 1}")
        write_script(self.root / "deploy/build", 'echo "$@" >build-arguments\nexit 1')  # and that is enough
        if cached:
            (self.root / "build").mkdir()
            (self.root / "build/CMakeCache.txt").touch()
        subprocess.run([self.root / script], capture_output=True, check=False)
        arguments = self.root / "build-arguments"
        return arguments.read_text().split() if arguments.exists() else None


class QuickstartTest(Tree):
    BINARIES = ["runahead", "runahead-gateway", "runahead-router", "runahead-worker"]

    def test_without_a_driver_a_new_folder_has_no_plugin(self):
        arguments = self.built("deploy/quickstart", cached=False, driver=False)
        self.assertEqual(arguments, ["release", "-DBUILD_TESTING=OFF", "-DRUNAHEAD_CUDA=OFF", *self.BINARIES])

    def test_with_a_driver_the_plugin_is_built_where_it_can_be(self):
        arguments = self.built("deploy/quickstart", cached=False, driver=True)
        self.assertEqual([a for a in arguments if "CUDA" in a][-1], "-DRUNAHEAD_CUDA=AUTO")  # the last one counts
        self.assertEqual(arguments[-5:], [*self.BINARIES, "worker_plugin"])

    def test_a_folder_of_the_tests_is_not_configured_anew(self):
        arguments = self.built("deploy/quickstart", cached=True, driver=False)
        self.assertEqual(arguments, ["release", *self.BINARIES])

    def test_a_driver_that_came_later_is_used(self):
        arguments = self.built("deploy/quickstart", cached=True, driver=True)
        self.assertEqual(arguments, ["release", "-DRUNAHEAD_CUDA=AUTO", *self.BINARIES, "worker_plugin"])


class TestsRunTest(Tree):
    def test_the_tests_build_the_plugin_after_a_quickstart_without(self):
        arguments = self.built("tests/run", cached=True, driver=False)
        self.assertEqual(arguments, ["release", "-DBUILD_TESTING=ON", "-DRUNAHEAD_CUDA=AUTO"])


class HasGpuDriverTest(Tree):
    def has_driver(self):
        code = subprocess.run([ROOT / "deploy/has_gpu_driver", self.root], check=False).returncode
        self.assertIn(code, (0, 1))
        return code == 0

    def test_a_toolkit_is_no_driver(self):
        for name in ("usr/local/cuda/bin/nvcc", "usr/local/cuda/lib64/stubs/libcuda.so",
                     "usr/local/cuda/compat/libcuda.so.1", "dev/null", "usr/lib/x86_64-linux-gnu/libcudart.so.13"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.assertFalse(self.has_driver())

    def test_each_sign_is_enough(self):
        for name in ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/x86_64-linux-gnu/libcuda.so.1",
                     "usr/lib64/libcuda.so.1", "usr/local/nvidia/lib64/libcuda.so.1"):
            with self.subTest(name):
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                self.assertTrue(self.has_driver())
                shutil.rmtree(self.root / pathlib.Path(name).parts[0])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
