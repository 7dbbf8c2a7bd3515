#!/usr/bin/env python3
"""tests/gpu/run.sh without a GPU: that it says so; and on a GPU and a bundle of our making, what it makes of tests that
pass, fail, skip, die and hang, of figures, and of time that runs out."""
import contextlib
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bundle  # noqa: E402
import machine  # noqa: E402
import make_manifest  # noqa: E402
import run_bundle  # noqa: E402
import steps  # noqa: E402

RAN = "echo '[==========] 3 tests from 1 test suite ran. (1 ms total)'"
LISTED = "[[ $* != *--gtest_list_tests* ]] || { printf 'Suite.\\n  Name\\n'; exit 0; }"
# Binary -> what it does, as a shell script.
BINARIES = {
    "tests/passes": RAN,
    "tests/fails": f"echo '[  FAILED  ] Suite.Name/bf16, where GetParam() = 3 (0 ms)'; {RAN}; exit 1",
    "tests/skips": f"echo '[  SKIPPED ] Suite.Name (0 ms)'; {RAN}",
    "tests/runs_nothing": "echo '[==========] 0 tests from 0 test suites ran. (0 ms total)'",
    "tests/dies": "kill -SEGV $$",
    "tests/hangs": "sleep 1000 & echo $! >$0.child; wait",
    "tests/leaves": "echo begun; setsid sleep 1000 & echo $! >$0.child; wait",
    "tests/golden": f'[[ $RUNAHEAD_TEST_MODEL == /model && $MORE == 1 ]] && {RAN}',
    "bench/gpu": '[[ $* != --help ]] || { echo prefill attention decode gemm parts kvpr; exit 0; }\n'
                 'echo noise; echo "noise too" >&2; for suite; do :; done\n'
                 'echo \'{"side":"runahead","suite":"device","device":"a card"}\'\n'
                 'echo "{\\"side\\":\\"runahead\\",\\"suite\\":\\"$suite\\",\\"model\\":\\"m\\",\\"shape\\":\\"s\\",'
                 '\\"what\\":\\"w\\",\\"value\\":2.5,\\"unit\\":\\"TFLOP/s\\"}"; echo \'{"side":"run\'',
    # memcheck: finds fault with one of them
    "tests/unsupported": "echo '========= Error: Device not supported'; exit 1",
    "sanitizer": 'while [[ $1 == -* ]]; do [[ $1 == --tool || $1 == --*api* || $1 == --*code ]] && shift; shift; done\n'
                 '"$@" || exit $?; [[ $1 != */passes ]] || { echo "ERROR SUMMARY: 2 errors"; exit 99; }',
}


def test(name, binary, labels=("gpu",), environment=None):
    return {"name": name, "command": [f"tests/{binary}"], "timeout_s": 1 if binary in ("hangs", "leaves") else 60,
            "labels": list(labels), "environment": environment or {}}


MANIFEST = {
    "commit": "0123456789abcdef", "changed": False, "compiler": "nvcc", "needs": ["libnowhere.so.1"],
    "benchmarks": ["bench/gpu"], "glibc": "2.0", "files": {}, "sources": {},
    "tests": [
        test("worker/chain_process_test@gpu", "passes"), test("kernels/passes@gpu", "passes"),
        test("kernels/fails@gpu", "fails"), test("kernels/skips@gpu", "skips"),
        test("kernels/nothing@gpu", "runs_nothing"), test("worker/dies@gpu", "dies"), test("worker/hangs@gpu", "hangs"),
        test("golden/generate@gpu", "golden", ("model", "gpu"), {"MORE": "1"}),
    ],
}


class RunBundleTest(unittest.TestCase):
    def setUp(self):
        environment = mock.patch.dict(os.environ)
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("RUNAHEAD_TEST_MODEL", None)  # tests/run sets it
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bundle = folder.name
        for name, script in BINARIES.items():
            path = os.path.join(self.bundle, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/bash\n{LISTED}\n{script}\n")
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        make_manifest.pack(self.bundle, ["tests/passes"])
        self.write("manifest.json", json.dumps(MANIFEST))
        self.models = os.path.join(self.bundle, "kept")
        gpu = {"name": "a card", "memory_mib": 1, "compute": "9.0", "driver_cuda": "13.0", "driver": "580"}
        for target, name, value in ((machine, "missing_gpu", lambda: None), (machine, "first_gpu", lambda: gpu),
                                    (machine, "smi", lambda fields: ""), (bundle, "MODEL_FOLDER", self.models),
                                    (machine, "lost_gpu", lambda: None),
                                    (machine, "find_tool", lambda *_: os.path.join(self.bundle, "sanitizer"))):
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def write(self, name, text):
        with open(os.path.join(self.bundle, name), "w", encoding="utf-8") as file:
            file.write(text)

    def run_it(self, *arguments, **environment):
        """Exit code, what was said, and the results by phase/name."""
        out = os.path.join(self.bundle, "results.json")
        environment = {"RUNAHEAD_TEST_MODEL": "", **environment}
        said = io.StringIO()
        with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(said):
            code = run_bundle.main(["--bundle", self.bundle, "--out", out, *arguments])
        results = {}
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                self.results = json.load(file)
            results = {f"{step['phase']}/{step['name']}": step for step in self.results["steps"]}
        return code, said.getvalue(), results

    def test_each_test_is_judged_and_none_stops_the_rest(self):
        code, said, results = self.run_it("--only", "^(parity|golden|chain)/")
        self.assertEqual(code, 1)
        self.assertFalse(self.results["passed"])
        found = {name: (step["result"], step["note"]) for name, step in results.items()}
        self.assertEqual(found.pop("parity/worker/hangs@gpu")[0], "timeout")
        self.assertEqual(found, {
            "parity/kernels/passes@gpu": ("passed", "3 tests"),
            "parity/kernels/fails@gpu": ("failed", "Suite.Name/bf16"),
            "parity/kernels/skips@gpu": ("skipped", "Suite.Name"),
            "parity/kernels/nothing@gpu": ("failed", "ran no test"),
            "parity/worker/dies@gpu": ("failed", "killed by signal 11"),
            "golden/golden/generate@gpu": ("not run", "no model"),
            "chain/worker/chain_process_test@gpu": ("passed", "3 tests")})
        self.assertIn("not run (no model)", said)
        self.assertIn("failed: parity/kernels/fails@gpu, ", said)
        self.assertIn("libnowhere.so.1: NOT FOUND", said)
        with open(os.path.join(self.bundle, "results.log"), encoding="utf-8") as log:
            self.assertIn("where GetParam() = 3", log.read())

    def test_what_hangs_ends_with_all_that_it_started(self):
        self.run_it("--only", "hangs")
        with open(os.path.join(self.bundle, "tests/hangs.child"), encoding="utf-8") as file:
            child = int(file.read())
        deadline = time.monotonic() + 60  # an orphan is there until it is reaped
        while time.monotonic() < deadline:
            try:
                with open(f"/proc/{child}/stat", encoding="utf-8") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except OSError:
                return
        self.fail(f"{child} is still there")

    def test_what_does_not_die_holds_up_nothing(self):
        leaves = steps.Step("parity", "leaves", [os.path.join(self.bundle, "tests/leaves")], 1)
        with mock.patch.object(steps, "KILL_S", 0.1):
            steps.run_step(leaves, 1, self.bundle, dict(os.environ))
        with open(os.path.join(self.bundle, "tests/leaves.child"), encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGKILL)
        self.assertEqual((leaves.result, leaves.output), ("timeout", "begun\n"))

    def test_results_are_kept_step_by_step(self):
        def stopped(step, *rest):
            if step.name == "kernels/fails@gpu":
                raise KeyboardInterrupt
            steps.run_step(step, *rest)

        with mock.patch.object(run_bundle, "run_step", stopped), self.assertRaises(KeyboardInterrupt):
            self.run_it("--only", "^parity/")
        with open(os.path.join(self.bundle, "results.json"), encoding="utf-8") as file:
            kept = json.load(file)
        self.assertFalse(kept["passed"])
        self.assertEqual([step["result"] for step in kept["steps"]][:2], ["passed", "not run"])

    def test_notes_are_short_and_say_why(self):
        many = "\n".join(f"[  FAILED  ] Suite.Test{i} (0 ms)" for i in range(5))
        skip = "skipped: no CUDA device: old driver\n[  SKIPPED ] A.B (0 ms)\n[  SKIPPED ] 1 test, listed below:"
        for out, code, expected in ((many, 1, ("failed", "Suite.Test0, Suite.Test1, Suite.Test2 and 2 more")),
                                    (skip, 0, ("skipped", "skipped: no CUDA device: old driver"))):
            step = steps.Step("parity", "", [], 1)
            steps.judge(step, code, True, out)
            self.assertEqual((step.result, step.note), expected)

    def test_a_gpu_that_the_sanitizer_does_not_know_is_no_failure(self):
        step = steps.Step("memcheck", "", [os.path.join(self.bundle, "tests/unsupported")], 1)
        steps.run_step(step, 60, self.bundle, dict(os.environ))
        self.assertEqual((step.result, step.note, step.failed), ("not run", "no compute-sanitizer", False))
        self.assertTrue(step.left_out)

    def test_nccl_speaks_beside_the_processes_words(self):
        [chain] = [step for step in steps.test_steps("", MANIFEST, "") if step.phase == "chain"]
        self.assertEqual(chain.environment["NCCL_DEBUG_FILE"], "/dev/stderr")

    def test_without_the_model_not_all_has_passed(self):
        code, said, _ = self.run_it("--only", "^(parity/kernels/passes|golden|chain)")
        self.assertEqual(code, 3, said)
        self.assertFalse(self.results["passed"])
        self.assertIn("\nnot run (no model): golden/golden/generate@gpu\n", said)

    def test_all_is_well_where_all_that_was_asked_for_passed(self):
        code, said, _ = self.run_it("--only", "^(parity/kernels/passes|chain)")
        self.assertEqual(code, 0, said)
        self.assertTrue(self.results["passed"])
        self.assertIn("all tests passed", said)

    def test_the_model_and_the_tests_own_environment_are_given(self):
        code, said, results = self.run_it("--only", "golden", RUNAHEAD_TEST_MODEL="/model")
        self.assertEqual((code, results["golden/golden/generate@gpu"]["result"]), (0, "passed"), said)

    def test_faults_of_memory_fail(self):
        code, _, results = self.run_it("--only", "memcheck/kernels/(passes|fails)")
        self.assertEqual(code, 1)
        self.assertEqual(results["memcheck/kernels/passes@gpu"]["note"], "2 errors")
        self.assertEqual(results["memcheck/kernels/fails@gpu"]["note"], "Suite.Name/bf16")

    def test_no_sanitizer_is_said_and_fails_nothing(self):
        with mock.patch.object(machine, "find_tool", lambda *_: None):
            code, said, _ = self.run_it("--only", "memcheck/kernels/passes")
        self.assertEqual(code, 3)
        self.assertIn("not run (no compute-sanitizer): memcheck/kernels/passes@gpu\n", said)

    def test_races_are_looked_for_in_the_flash_kernels(self):
        tests = [steps.Step("parity", name, [name], 1) for name in ("kernels/cuda/flash_decode_test@gpu", "kernels/x",
                                                                    "worker/x")]
        found = {(step.phase, step.name) for step in steps.sanitizer_steps(tests, "sanitizer")}
        self.assertEqual(found, {("memcheck", "kernels/cuda/flash_decode_test@gpu"), ("memcheck", "kernels/x"),
                                 ("racecheck", "kernels/cuda/flash_decode_test@gpu")})
        race = steps.Step("racecheck", "", [], 1)
        steps.judge(race, 99, True, "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
        self.assertEqual((race.result, race.note), ("failed", "1 hazard displayed (1 error, 0 warnings)"))

    def test_what_comes_after_a_test_that_ended_its_process_is_not_run(self):
        begun = "[==========] Running 5 tests from 1 test suite.\n[ RUN      ] A.B\n[ RUN      ] A.C\n"
        for code, ended, note in ((-6, True, "killed by signal 6 in A.C"), (78, True, "the GPU was lost to it in A.C"),
                                  (1, True, "exit code 1 in A.C"), (-9, False, "killed after 0 s in A.C")):
            step = steps.Step("parity", "", [], 1)
            steps.judge(step, code, ended, begun)
            self.assertTrue(step.failed)
            self.assertEqual((step.note, step.tests_not_run), (f"{note}; 3 tests after it not run", 3))

    def test_nothing_is_run_on_a_gpu_that_is_lost(self):
        with mock.patch.object(machine, "lost_gpu", lambda: "why"):
            code, said, results = self.run_it("--only", "^parity/|bench/gemm$")
        self.assertEqual(code, 1)
        self.assertEqual(results["parity/kernels/passes@gpu"]["result"], "passed")
        later = [(step["result"], step["note"]) for name, step in results.items()
                 if name not in ("parity/kernels/passes@gpu", "parity/kernels/fails@gpu")]
        self.assertEqual(set(later), {("not run", "the GPU is lost: why")})
        self.assertIn("failed: parity/kernels/fails@gpu\n", said)

    def test_no_such_step_is_said(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.run_it("--only", "nonsense")[0], 2)
        self.assertIn("no step is called nonsense", said.getvalue())

    def test_figures_of_both_sides_stand_side_by_side(self):
        named = {"side": "pytorch", "suite": "gemm", "model": "m", "shape": "s"}
        other = [{**named, "what": "w", "value": 2.0, "unit": "TFLOP/s", "backend": "FLASH_ATTENTION"},
                 {**named, "what": "x", "value": None, "unit": "ms"}]
        code, said, results = self.run_it("--only", "^bench/(gemm|handoff)")
        self.assertEqual(code, 0, said)
        self.assertEqual(set(results), {"bench/gemm", "bench/gemm again", "bench/handoff"})
        self.assertEqual([figure["suite"] for figure in results["bench/gemm"]["figures"]], ["device", "gemm"])
        ours = [steps.Step("bench", name, [], 1, figures=step["figures"]) for name, step in results.items()
                if "gemm" in name]
        table = run_bundle.comparison(ours + [steps.Step("pytorch", "gemm", [], 1, figures=other)])
        shown = {key[3]: tuple(run_bundle.value_text(sides[side]) for side in ("runahead", "pytorch"))
                 for key, sides in table.items()}
        self.assertEqual(shown, {"w": ("2.5, 2.5", "2 flash"), "x": ("-", "none")})

    def test_time_that_is_over_leaves_tests_out_and_says_so(self):
        code, said, results = self.run_it("--only", "parity/kernels/passes|bench/gemm", RUNAHEAD_GPU_BUDGET_S="6")
        self.assertEqual(code, 3)
        self.assertEqual({(step["result"], step["note"]) for step in results.values()}, {("not run", "time")})
        self.assertIn("not run (time): parity/kernels/passes@gpu, bench/gemm, bench/gemm again\n", said)

    def test_later_phases_keep_their_share(self):
        def ends(*phases):
            found = run_bundle.phase_ends([steps.Step(phase, "", [], 1) for phase in phases], 100, 540)
            return [round(found[phase]) for phase in ("parity", "memcheck", "bench", "pytorch")]

        self.assertEqual(ends("parity", "memcheck", "bench"), [311, 419, 635, 635])
        self.assertEqual(ends("parity"), [635, 635, 635, 635])
        self.assertEqual(ends("parity", "bench"), [419, 419, 635, 635])
        missing = [steps.Step("parity", "", [], 1), steps.Step("memcheck", "", [], 1, missing="no compute-sanitizer")]
        self.assertEqual(round(run_bundle.phase_ends(missing, 100, 540)["parity"]), 635)

    def test_a_dry_run_lists_what_it_would_do(self):
        code, said, results = self.run_it("--dry-run", "--only", "chain|pytorch/gemm")
        self.assertEqual((code, results), (0, {}))
        self.assertRegex(said, r"chain/worker/chain_process_test@gpu +60 s +1 tests +\S*tests/passes\n")
        self.assertIn("pytorch/gemm", said)

    def test_a_dry_run_finds_what_does_not_start_and_filters_of_no_test(self):
        os.remove(os.path.join(self.bundle, "tests/fails"))
        with mock.patch.object(steps, "NOT_UNDER_SANITIZER", {"kernels/passes@gpu": "*.Gone"}):
            code, said, _ = self.run_it("--dry-run", "--only", "kernels/(passes|fails)")
        self.assertEqual(code, 1)
        self.assertRegex(said, r"DOES NOT START parity/kernels/fails@gpu: .*No such file")
        self.assertIn("memcheck/kernels/passes@gpu: --gtest_filter=-*.Gone leaves nothing out", said)

    def test_a_dry_run_finds_a_benchmark_without_a_suite(self):
        code, said, _ = self.run_it("--dry-run", "--only", "^bench/(kvpr|handoff)")
        self.assertEqual(code, 1)
        self.assertRegex(said, r"bench/kvpr +\d+ s  ")
        self.assertIn("DOES NOT START bench/handoff: it has no suite handoff\n", said)
        self.assertNotIn("DOES NOT START bench/kvpr", said)

    def test_parts_of_the_model_are_kept_and_joined(self):
        self.write("model.part1of2", "the ")
        os.remove(os.path.join(self.bundle, "manifest.json"))
        self.assertEqual(self.run_it()[0], 0)
        self.assertEqual(bundle.quick_start_model(self.bundle), "")
        os.remove(os.path.join(self.bundle, "model.part1of2"))
        self.write("model.part2of2", "model")
        self.assertEqual(self.run_it()[0], 0)
        os.makedirs(os.path.join(self.bundle, "deploy"))
        self.write("deploy/models", f"quick-start package file {hashlib.sha256(b'the model').hexdigest()}\n")
        with open(bundle.quick_start_model(self.bundle), encoding="utf-8") as model:
            self.assertEqual(model.read(), "the model")
        self.write("deploy/models", "another\n")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(bundle.quick_start_model(self.bundle), "")
        self.assertIn("is not the quick-start model", said.getvalue())
        self.assertFalse(os.path.exists(self.models))

    def test_no_bundle_is_said(self):
        os.remove(os.path.join(self.bundle, "manifest.json"))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.run_it()[0], 2)
        self.assertIn("there is no bundle in", said.getvalue())


class WithoutGpuTest(unittest.TestCase):
    def test_it_says_so(self):
        ran = subprocess.run([os.path.join(HERE, "run.sh"), "--bundle", "/nowhere"], stdout=subprocess.PIPE, text=True, check=False,
                             env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(ran.returncode, 77)
        self.assertTrue(ran.stdout.startswith("skipped: no CUDA device: "), ran.stdout)


if __name__ == "__main__":
    unittest.main()
