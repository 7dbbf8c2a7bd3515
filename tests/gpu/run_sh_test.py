#!/usr/bin/env python3
"""tests/gpu/run.sh as a user starts it: in a checkout of its own, on a bundle with tests of our making, and on a driver
of our making that shows a GPU. Its exit codes, what it refuses, and what it says was not run.

usage: run_sh_test.py SUBJECT DRIVER_FOLDER: as gpu_main_test.py.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import bundle  # noqa: E402
import make_manifest  # noqa: E402

LISTS = "if [[ $* == *--gtest_list_tests* ]]; then printf 'Suite.\\n  Name\\n'; exit 0; fi"
RAN = "echo '[==========] 3 tests from 1 test suite ran. (1 ms total)'"
SCRIPTS = {  # of the bundle
    "tests/passes": RAN,
    "tests/fails": f"echo '[  FAILED  ] Suite.Name (0 ms)'; {RAN}; exit 1",
    "tests/loses_it_for_all": "touch $RUNAHEAD_FAKE_GPU_LOST; exit 1",
    "tests/golden": f"[[ -f $RUNAHEAD_TEST_MODEL ]] && {RAN}",
    "bench/gpu": "echo prefill attention decode gemm parts handoff kvpr",
}
SANITIZER = """while [[ $1 == -* ]]; do shift 2; done
"$@\""""


def test(name, command, labels=("gpu",)):
    return {"name": name, "command": [f"tests/{command[0]}", *command[1:]], "timeout_s": 60, "labels": list(labels),
            "environment": {}}


TESTS = [
    test("kernels/cuda/flash_test@gpu", ["passes"]), test("golden/golden_test@gpu", ["golden"], ("model", "gpu")),
    test("worker/fails@gpu", ["fails"]), test("worker/loses_it@gpu", ["subject", "--gtest_filter=-*.Fails:*.Skips"]),
    test("worker/loses_it_for_all@gpu", ["loses_it_for_all"]), test("worker/last@gpu", ["passes"]),
]
GOOD = "^(parity/kernels|golden|memcheck|racecheck)/"


def write_script(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/bash\n{text}\n")
    os.chmod(path, 0o755)


class RunShTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.bundle = os.path.join(folder.name, "checkout"), os.path.join(folder.name, "bundle")
        self.tools, self.model = os.path.join(folder.name, "tools"), os.path.join(folder.name, "model")
        self.lost = os.path.join(folder.name, "lost")
        self.write("docs/page.md", "a page")
        self.write("deploy/models", "no model")
        shutil.copytree(HERE, os.path.join(self.root, "tests/gpu"), ignore=shutil.ignore_patterns("__pycache__"))
        # The sanitizer of this machine's toolkit is not meant.
        with open(os.path.join(self.root, "tests/gpu/machine.py"), encoding="utf-8") as file:
            text = file.read()
        self.write("tests/gpu/machine.py", text.replace("/usr/local/cuda", "/nowhere"))
        self.write(".gitignore", "__pycache__/\n")
        self.git("init", "--quiet")
        self.commit()
        for name, script in SCRIPTS.items():
            write_script(os.path.join(self.bundle, name), f"{LISTS}\n{script}")
        shutil.copy(SUBJECT, os.path.join(self.bundle, "tests/subject"))
        write_script(os.path.join(self.tools, "compute-sanitizer"), SANITIZER)
        with open(self.model, "w", encoding="utf-8") as file:
            file.write("a model")
        self.make_bundle()

    def git(self, *arguments):
        settings = ("-c", "user.name=nobody", "-c", "user.email=nobody", "-c", "core.hooksPath=/dev/null")
        subprocess.run(["git", "-C", self.root, *settings, *arguments], check=True, stdout=subprocess.DEVNULL)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a commit")

    def write(self, name, text):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def make_bundle(self, **changed):
        manifest = make_manifest.make(self.root, self.bundle, TESTS, "nvcc", [])
        make_manifest.write({**manifest, **changed}, self.bundle)
        return manifest

    def run_sh(self, *arguments, model=True, sanitizer=True, driver=None):
        """Exit code, stdout, stderr."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNAHEAD_")}
        for name in ("CUDA_HOME", "CUDA_PATH"):
            environment.pop(name, None)
        path = [folder for folder in environment["PATH"].split(":")
                if not os.path.exists(os.path.join(folder, "compute-sanitizer"))]
        environment.update(LD_LIBRARY_PATH=driver or DRIVER, OUT=os.path.dirname(self.root),
                           RUNAHEAD_FAKE_GPU_LOST=self.lost, TMPDIR=os.path.dirname(self.root),
                           PATH=":".join([self.tools] * sanitizer + path))
        if model:
            environment["RUNAHEAD_TEST_MODEL"] = self.model
        ran = subprocess.run(["tests/gpu/run.sh", "--bundle", self.bundle, *arguments], cwd=self.root, env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=110, check=False)
        self.assertNotIn("Traceback", ran.stderr)
        return ran.returncode, ran.stdout, ran.stderr

    def results(self):
        with open(os.path.join(os.path.dirname(self.root), "gpu-results.json"), encoding="utf-8") as file:
            return {f"{step['phase']}/{step['name']}": step for step in json.load(file)["steps"]}

    def assert_refused(self, *words):
        code, said, errors = self.run_sh("--dry-run")
        self.assertEqual(code, 2, said)
        self.assertTrue(said.startswith("glibc: the bundle needs "), said)
        for word in words:
            self.assertIn(word, errors)

    def test_all_pass(self):
        code, said, errors = self.run_sh("--only", GOOD)
        self.assertEqual(code, 0, said + errors)
        self.assertIn("all tests passed", said)
        self.assertEqual({step["result"] for step in self.results().values()}, {"passed"})
        self.assertIn("racecheck/kernels/cuda/flash_test@gpu", self.results())

    def test_which_glibc_is_needed_is_said_first(self):
        needed = self.make_bundle()["glibc"]
        self.assertRegex(needed, r"^2\.[0-9]+$")
        self.assertNotEqual(needed, "2.0", "the subject is a binary, and asks for one")
        said = self.run_sh("--only", "parity/kernels")[1]
        self.assertTrue(said.startswith(f"glibc: the bundle needs {needed} or newer, this machine has "), said)

    def test_a_bundle_for_a_newer_glibc_is_refused(self):
        self.make_bundle(glibc="9.10")
        self.assert_refused("glibc is too old")

    def test_another_commit_of_the_same_files_is_none(self):
        self.write("docs/page.md", "changed")
        self.commit()
        self.assertEqual(self.run_sh("--dry-run")[0], 0)

    def test_a_bundle_of_other_changes_is_refused(self):
        self.write("kernels/new.cc", "a")
        self.make_bundle()
        self.assertEqual(self.run_sh("--dry-run")[0], 0)
        self.write("kernels/new.cc", "b")
        self.assert_refused(" with changes, and kernels/new.cc differ here")

    def test_the_files_say_whether_it_is_the_same_commit_without_git_too(self):
        shutil.rmtree(os.path.join(self.root, ".git"))
        self.write("docs/page.md", "changed")
        self.assertEqual(self.run_sh("--dry-run")[0], 0)
        self.write("deploy/models", "changed")
        self.assert_refused("deploy/models differ here")

    def test_a_damaged_bundle_is_refused(self):
        with open(os.path.join(self.bundle, "tests/passes"), "a", encoding="utf-8") as file:
            file.write("#")
        self.assert_refused("tests/passes of ", "bring the bundle again")

    def test_a_packed_bundle_is_unpacked_and_half_a_one_is_refused(self):
        for half in (False, True):
            make_manifest.pack(self.bundle, ["tests/passes", "tests/fails"])
            self.assertFalse(os.path.exists(os.path.join(self.bundle, "tests/passes")))
            archive = os.path.join(self.bundle, bundle.ARCHIVE)
            if half:
                os.truncate(archive, os.path.getsize(archive) // 2)
                self.assert_refused("is damaged", "bring the bundle again")
            else:
                self.assertEqual(self.run_sh("--dry-run")[0], 0)

    def test_an_archive_of_something_else_is_refused(self):
        for text in (b"no archive", b""):
            with open(os.path.join(self.bundle, bundle.ARCHIVE), "wb") as file:
                file.write(text)
            self.assert_refused("is damaged", "bring the bundle again")

    def test_a_failure_is_exit_code_1(self):
        code, said, _ = self.run_sh("--only", "parity/(kernels|worker/fails|worker/last)")
        self.assertEqual(code, 1)
        self.assertIn("\nfailed: parity/worker/fails@gpu\n", said)
        self.assertEqual(self.results()["parity/worker/last@gpu"]["result"], "passed")

    def test_what_is_missing_is_exit_code_3_and_is_listed(self):
        code, said, _ = self.run_sh("--only", GOOD, model=False)
        self.assertEqual(code, 3)
        self.assertIn("\nnot run (no model): golden/golden/golden_test@gpu\n", said)
        code, said, _ = self.run_sh("--only", GOOD, sanitizer=False)
        self.assertEqual(code, 3)
        self.assertIn("\nnot run (no compute-sanitizer): memcheck/kernels/cuda/flash_test@gpu, "
                      "racecheck/kernels/cuda/flash_test@gpu\n", said)

    def test_tests_after_one_that_lost_the_gpu_are_not_run_and_other_binaries_are(self):
        code, said, _ = self.run_sh("--only", "parity/worker/(loses_it@|last)")
        self.assertEqual(code, 1)
        step = self.results()["parity/worker/loses_it@gpu"]
        self.assertEqual((step["result"], step["tests_not_run"]), ("failed", 3))
        self.assertEqual(step["note"], "the GPU was lost to it in Subject.LosesTheGpu; 3 tests after it not run")
        self.assertIn("not run (after one that ended its process): 3 of parity/worker/loses_it@gpu\n", said)
        self.assertEqual(self.results()["parity/worker/last@gpu"]["result"], "passed")

    def test_nothing_is_run_on_a_gpu_that_is_lost_to_all(self):
        code, said, _ = self.run_sh("--only", "parity/worker/(loses_it_for_all|last)")
        self.assertEqual(code, 1)
        self.assertEqual(self.results()["parity/worker/loses_it_for_all@gpu"]["result"], "failed")
        self.assertIn("not run (the GPU is lost: cuCtxPushCurrent_v2 returned 999): parity/worker/last@gpu\n", said)

    def test_a_dry_run_says_what_would_be_missing(self):
        code, said, _ = self.run_sh("--dry-run", model=False, sanitizer=False, driver="/nowhere")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"parity/worker/loses_it@gpu +60 s +5 tests +\S*tests/subject '--gtest_filter")
        self.assertRegex(said, r"golden/golden_test@gpu +60 s +1 tests +\(no model\) ")
        self.assertRegex(said, r"racecheck/kernels/cuda/flash_test@gpu .*\(no compute-sanitizer\)")

    def test_without_a_gpu_it_is_exit_code_77(self):
        code, said, _ = self.run_sh(driver="/nowhere")
        self.assertEqual(code, 77, said)
        self.assertIn("skipped: no CUDA device", said)

    def test_the_help_says_what_exit_codes_mean(self):
        code, said, _ = self.run_sh("--help")
        self.assertEqual(code, 0)
        for meaning in ("0   all tests passed", "1   a test failed", "2   nothing was run", "3   what was run passed",
                        "77  there is no GPU"):
            self.assertIn(meaning, said)


if __name__ == "__main__":
    SUBJECT, DRIVER = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    unittest.main()
