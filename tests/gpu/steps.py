"""The steps of a run on a GPU: what they start, how long they may take, and what came of them."""
import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SUITES_OF_BOTH = ("prefill", "attention", "decode", "gemm")  # measured in PyTorch, too
SUITES = SUITES_OF_BOTH + ("parts", "handoff", "kvpr")
# Seconds that a suite may take. KVPR's fills some GiB of host memory for each model.
SUITE_S, LONG_SUITES = 60, {"kvpr": 240}
# What is left out under the sanitizer, which slows kernels down many times and puts streams that wait in each other's
# way; by a gtest filter.
NOT_UNDER_SANITIZER = {"kernels/cuda/flash_decode_test@gpu": "*.ALongSequence",
                       "kernels/cuda/top_k_test@gpu": "*.LargestVocabulary",
                       "kernels/device_stream_test@gpu": "*.StreamsThatWaitDoNotHoldUpOthers"}
NO_SANITIZER = "no compute-sanitizer"
SANITIZED = 99  # its exit code where it found something
# Its tools: the tests that run under each, and what it is told. Errors that CUDA returns are what some tests ask for;
# memory is what memcheck is about.
SANITIZER_TOOLS = {"memcheck": ("kernels/", ("--report-api-errors", "no")),
                   "racecheck": ("kernels/cuda/flash_", ("--racecheck-report", "analysis"))}
# NCCL says what is wrong, and not on stdout, where the tests' processes speak with each other.
NCCL_TELLS = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
SKIPPED = 77    # the exit code of a test that skipped all it has,
GPU_LOST = 78   # and of one that left an error behind that stays (tests/testing/gpu_main.cc)
START_S = 60    # for a binary to list its tests
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
    wrapper: list = dataclasses.field(default_factory=list)      # what runs the command
    # What came of it:
    result: str = "not run"
    seconds: float = 0.0
    note: str = ""
    output: str = ""
    figures: list = dataclasses.field(default_factory=list)
    tests_not_run: int = 0  # of those that it has, when it ended before them

    @property
    def full_name(self):
        return f"{self.phase}/{self.name}"

    @property
    def full_command(self):
        return self.wrapper + self.command

    @property
    def is_test(self):
        return self.phase not in ("bench", "pytorch")

    @property
    def failed(self):
        return self.is_test and self.result not in ("passed", "not run")

    @property
    def left_out(self):
        return self.is_test and self.result == "not run"


# In this order; each ends early enough to leave the later ones this share of the time.
PHASES = {"parity": 0, "golden": 0, "chain": 0, "memcheck": 0.2, "racecheck": 0.1, "bench": 0.4}


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


def sanitizer_steps(tests, sanitizer):
    steps = []
    for tool, (prefix, options) in SANITIZER_TOOLS.items():
        wrapper = [sanitizer or "compute-sanitizer", "--tool", tool, *options, "--error-exitcode", str(SANITIZED)]
        for test in tests:
            if not test.name.startswith(prefix):
                continue
            left_out = NOT_UNDER_SANITIZER.get(test.name)
            command = test.command + ([f"--gtest_filter=-{left_out}"] if left_out else [])
            steps.append(Step(tool, test.name, command, 120, test.environment, "" if sanitizer else NO_SANITIZER,
                              wrapper))
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
            steps.append(Step("bench", suite + again, [binary, "--json", "--seconds", str(seconds), suite],
                              LONG_SUITES.get(suite, SUITE_S), missing=no_binary))
            if suite in SUITES_OF_BOTH and not again:
                steps.append(Step("pytorch", suite, [sys.executable, torch_side, "--seconds", str(seconds), suite], 75,
                                  missing=no_torch))
    return steps


def run_step(step, timeout_s, root, environment):
    """Runs it in a process group of its own, all of which ends with it, with a folder for its files. Fills in what came
    of it."""
    with tempfile.TemporaryDirectory(prefix="runahead-gpu-") as files:
        run_process(step, timeout_s, root, {**environment, **step.environment, "TEST_TMPDIR": files + "/"})


def run_process(step, timeout_s, root, environment):
    begin = time.monotonic()
    try:
        # Lines of figures must not be torn by messages.
        errors = subprocess.STDOUT if step.is_test else subprocess.PIPE
        process = subprocess.Popen(step.full_command, cwd=root, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
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
    ran = re.search(r"^\[=+\] (\d+) tests? from .* ran\.", out, re.M)
    begun = re.findall(r"^\[ RUN      \] (\S+)", out, re.M)
    within = ""
    if ran is None and begun:  # it did not come to its end
        of = re.search(r"^\[=+\] Running (\d+) tests?", out, re.M)
        step.tests_not_run = int(of.group(1)) - len(begun) if of else 0
        within = f" in {begun[-1]}" + (f"; {step.tests_not_run} tests after it not run" if step.tests_not_run else "")
    if not ended:
        step.result, step.note = "timeout", f"killed after {step.seconds:.0f} s{within}"
        return
    skipped = sorted(set(re.findall(r"^\[  SKIPPED \] ([^\s,]+)(?: \(|$)", out, re.M)))
    no_device = re.search(r"skipped: no CUDA device.*", out)
    step.result = "passed"
    if code == SKIPPED:
        step.result, step.note = "skipped", no_device.group() if no_device else some(skipped)
    elif code != 0:
        judge_failure(step, code, out, within)
    elif not step.is_test:
        step.note = f"{len(step.figures)} lines"
    elif skipped or no_device:  # there is a GPU: nothing has a reason to skip
        step.result, step.note = "skipped", no_device.group() if no_device else some(skipped)
    elif ran is None or int(ran.group(1)) == 0:
        step.result, step.note = "failed", "ran no test"
    else:
        step.note = f"{ran.group(1)} tests"


def judge_failure(step, code, out, within):
    """`within`: the test at which it ended early, and how many were to come; "" where it came to its end."""
    failures = sorted(set(re.findall(r"^\[  FAILED  \] ([^\s,]+)(?: \(|, where|$)", out, re.M)))
    step.result = "failed"
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", out)
    if step.phase in SANITIZER_TOOLS and "Device not supported" in out:
        step.result, step.note = "not run", NO_SANITIZER
    elif step.phase in SANITIZER_TOOLS and code == SANITIZED:
        step.note = (found.group(1) if found else f"what {step.phase} looks for") + within
    elif code == GPU_LOST:
        step.note = "the GPU was lost to it" + within
    elif code < 0:
        step.note = f"killed by signal {-code}" + within
    else:
        step.note = some(failures) or f"exit code {code}" + within


def why_no_suite(step, root, environment):
    """Why the benchmark of a step would not run what the step asks of it; "" where it would. Needs no GPU."""
    binary, suite = step.command[0], step.command[-1]
    try:
        ran = subprocess.run([binary, "--help"], cwd=root, env={**environment, **step.environment},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=START_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ran.returncode != 0:
        return f"exit code {ran.returncode}: {ran.stdout.strip()}"
    return "" if re.search(rf"\b{suite}\b", ran.stdout) else f"it has no suite {suite}"


def tests_of(step, root, environment):
    """How many tests the binary of a step of tests would run; as a second value, why it cannot say so. Needs no GPU."""
    def listed(command):
        ran = subprocess.run(command + ["--gtest_list_tests"], cwd=root, env={**environment, **step.environment},
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=START_S, check=False)
        if ran.returncode != 0:
            raise OSError(f"exit code {ran.returncode}: {ran.stdout.strip()}")
        return len(re.findall(r"^  \S", ran.stdout, re.M))

    try:
        count = listed(step.command)
        if count == 0:
            return 0, "it has no test"
        if step.command[-1].startswith("--gtest_filter=-") and count == listed(step.command[:-1]):
            return count, f"{step.command[-1]} leaves nothing out: it has no such test"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, str(error)
    return count, ""
