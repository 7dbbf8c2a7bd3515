"""The steps of a run on a GPU: what they start, how long they may take, and what came of them."""
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

SUITES_OF_BOTH = ("prefill", "attention", "decode", "gemm")  # measured in PyTorch, too
SUITES = SUITES_OF_BOTH + ("parts", "handoff")
# What is left out under memcheck, which slows kernels down many times and puts streams that wait in each other's way;
# by a gtest filter.
NOT_UNDER_MEMCHECK = {"kernels/cuda/flash_decode_test@gpu": "*.ALongSequence",
                      "kernels/cuda/top_k_test@gpu": "*.LargestVocabulary",
                      "kernels/device_stream_test@gpu": "*.StreamsThatWaitDoNotHoldUpOthers"}
NO_SANITIZER = "no compute-sanitizer"
NOT_A_FAILURE = ("no model", NO_SANITIZER, "no PyTorch", "not in the bundle")
# NCCL says what is wrong, and not on stdout, where the tests' processes speak with each other.
NCCL_TELLS = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
SKIPPED = 77    # the exit code of a test that skipped all it has
KILL_S = 5      # for what was killed to be gone; what the driver holds may never be
MOST_NAMES = 3  # of tests, in a note


@dataclasses.dataclass
class Step:
    phase: str  # of PHASES
    name: str
    command: list
    timeout_s: float
    environment: dict = dataclasses.field(default_factory=dict)  # beside the run's own
    missing: str = ""                                            # why it cannot run at all
    # What came of it:
    result: str = "not run"
    seconds: float = 0.0
    note: str = ""
    output: str = ""
    figures: list = dataclasses.field(default_factory=list)

    @property
    def is_test(self):
        return self.phase not in ("bench", "pytorch")

    @property
    def failed(self):
        return self.is_test and self.result != "passed" and self.note not in NOT_A_FAILURE


# In this order; each ends early enough to leave the later ones this share of the time.
PHASES = {"parity": 0, "golden": 0, "chain": 0, "memcheck": 0.2, "bench": 0.4}


def phase_of(test):
    if test.startswith("golden/"):
        return "golden"
    return "chain" if "process_test" in test else "parity"


def test_steps(bundle, manifest, model):
    order = list(PHASES)
    steps = []
    for test in manifest["tests"]:
        phase = phase_of(test["name"])
        step = Step(phase, test["name"], [os.path.join(bundle, test["command"][0]), *test["command"][1:]],
                    min(test["timeout_s"], 90 if phase == "parity" else 150), dict(test["environment"]))
        if phase == "chain":
            step.environment.update({name: os.environ.get(name, value) for name, value in NCCL_TELLS.items()})
        if "model" in test["labels"]:
            step.environment["RUNAHEAD_TEST_MODEL"] = model
            step.missing = "" if model else "no model"
        steps.append(step)
    return sorted(steps, key=lambda step: order.index(step.phase))


def memcheck_steps(tests, sanitizer):
    steps = []
    for test in tests:
        if not test.name.startswith("kernels/"):
            continue
        # Errors that CUDA returns are what some tests ask for; memory is what this is about.
        command = [sanitizer or "compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no",
                   "--error-exitcode", "99", *test.command]
        if test.name in NOT_UNDER_MEMCHECK:
            command.append(f"--gtest_filter=-{NOT_UNDER_MEMCHECK[test.name]}")
        steps.append(Step("memcheck", test.name, command, 120, test.environment, "" if sanitizer else NO_SANITIZER))
    return steps


def bench_steps(bundle, manifest, root, seconds):
    """All suites, PyTorch's side after each of ours; then ours again, to see what has drifted meanwhile."""
    binary, torch_side = os.path.join(bundle, "bench/gpu"), os.path.join(root, "tests/gpu/torch_side.py")
    no_binary = "" if "bench/gpu" in manifest["benchmarks"] else "not in the bundle"
    no_torch = ""
    if not os.path.exists(torch_side):
        no_torch = "no tests/gpu/torch_side.py"
    elif importlib.util.find_spec("torch") is None:
        no_torch = "no PyTorch"
    steps = []
    for again in ("", " again"):
        for suite in SUITES_OF_BOTH if again else SUITES:
            steps.append(Step("bench", suite + again, [binary, "--json", "--seconds", str(seconds), suite], 60,
                              missing=no_binary))
            if suite in SUITES_OF_BOTH and not again:
                steps.append(Step("pytorch", suite, [sys.executable, torch_side, "--seconds", str(seconds), suite], 75,
                                  missing=no_torch))
    return steps


def run_step(step, timeout_s, root, environment):
    """Runs it in a process group of its own, all of which ends with it. Fills in what came of it."""
    begin = time.monotonic()
    merged = {**environment, **step.environment}
    try:
        # Lines of figures must not be torn by messages.
        errors = subprocess.STDOUT if step.is_test else subprocess.PIPE
        process = subprocess.Popen(step.command, cwd=root, env=merged, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=errors, start_new_session=True)
    except OSError as error:
        step.result, step.note = "failed", str(error)
        return
    ended = True
    try:
        said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        ended = False
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the id is its own
        try:
            said = process.communicate(timeout=KILL_S)
        except subprocess.TimeoutExpired as undead:
            said = (undead.stdout, undead.stderr)
            process.poll()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
    step.seconds = time.monotonic() - begin
    out, err = ((text or b"").decode(errors="replace") for text in said)
    step.output = out + err
    judge(step, process.returncode, ended, out)


def figures_of(out):
    figures = []
    for line in out.splitlines():
        try:
            figure = json.loads(line)
        except ValueError:  # the line in which it was killed
            continue
        if isinstance(figure, dict):
            figures.append(figure)
    return figures


def some(names):
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def judge(step, code, ended, out):
    if not step.is_test:
        step.figures = figures_of(out)
    if not ended:
        step.result, step.note = "timeout", f"killed after {step.seconds:.0f} s"
        return
    ran = re.search(r"^\[=+\] (\d+) tests? from .* ran\.", out, re.M)
    skipped = sorted(set(re.findall(r"^\[  SKIPPED \] ([^\s,]+)(?: \(|$)", out, re.M)))
    no_device = re.search(r"skipped: no CUDA device.*", out)
    failures = sorted(set(re.findall(r"^\[  FAILED  \] ([^\s,]+)(?: \(|, where|$)", out, re.M)))
    step.result = "passed"
    if code == SKIPPED:
        step.result, step.note = "skipped", no_device.group() if no_device else some(skipped)
    elif code != 0:
        step.result = "failed"
        step.note = f"killed by signal {-code}" if code < 0 else some(failures) or f"exit code {code}"
        if step.phase == "memcheck" and "Device not supported" in out:
            step.result, step.note = "not run", NO_SANITIZER
        elif step.phase == "memcheck" and code == 99:
            found = re.search(r"ERROR SUMMARY: (.*)", out)
            step.note = found.group(1) if found else "errors of memory"
    elif not step.is_test:
        step.note = f"{len(step.figures)} lines"
    elif skipped or no_device:  # there is a GPU: nothing has a reason to skip
        step.result, step.note = "skipped", no_device.group() if no_device else some(skipped)
    elif ran is None or int(ran.group(1)) == 0:
        step.result, step.note = "failed", "ran no test"
    else:
        step.note = f"{ran.group(1)} tests"
