"""The service as benchmarks use it: a local cluster, requests of fresh token ids, metrics, medians."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.join(ROOT, "build/bin/runahead")
REQUESTS = os.path.join(ROOT, "build/bench/requests")
VOCABULARY = range(100, 49000)  # ordinary tokens of the quick-start model


class Cluster:
    """`runahead up` with the given arguments. stop() ends it."""

    def __init__(self, model, *arguments, binary=BINARY):
        if not os.path.exists(binary):
            sys.exit(f"{os.path.relpath(binary, ROOT)} is not there: run deploy/quickstart first")
        self.binary = binary
        self.log = tempfile.NamedTemporaryFile(prefix="runahead-bench-", suffix=".log", mode="w+")
        self.process = subprocess.Popen(
            [binary, "up", "--model", model, *map(str, arguments), "--json"],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
        )
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"runahead up did not start:\n{self.log.read()}")
        ready = json.loads(line)
        self.router, self.http = ready["router"], ready["http"]
        self.addresses, self.pids = ready["metrics"], ready["pids"]
        self.requests = None  # the client of together(), once it is needed
        self.about = f"{version(binary)}, up {' '.join(map(str, arguments))}, computes in {self._dtype()}"

    def _dtype(self):
        models = subprocess.run([self.binary, "models", "--router", self.router], capture_output=True, text=True).stdout
        return next((d for d in ("int8", "bf16", "f32") if d in models), "an unknown dtype")

    def generate(self, ids, new_tokens, *flags):
        """The JSON answer of `runahead generate`."""
        done = subprocess.run(
            [self.binary, "generate", "--router", self.router, "--token-ids", ",".join(map(str, ids)), "--max-tokens",
             str(new_tokens), "--temperature", "0", "--ignore-eos", "--json", *map(str, flags)],
            stdout=subprocess.PIPE, text=True,
        )
        if done.returncode != 0:
            sys.exit(f"runahead generate failed with code {done.returncode}")
        return json.loads(done.stdout)

    def measure(self, ids, new_tokens):
        return self.generate(ids, new_tokens)["timing"]

    def together(self, prompts, new_tokens):
        """All at once, from one client; the timing of each when the last is done."""
        if self.requests is None:
            if not os.path.exists(REQUESTS):
                sys.exit("build/bench/requests is not there: deploy/build release -DBUILD_TESTING=ON bench_requests")
            self.requests = subprocess.Popen([REQUESTS, self.router], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             text=True)
        print(new_tokens, *(",".join(map(str, ids)) for ids in prompts), file=self.requests.stdin, flush=True)
        line = self.requests.stdout.readline()
        if not line:
            sys.exit(f"build/bench/requests ended with code {self.requests.wait()}")
        return json.loads(line)

    def memory_mib(self):
        return memory_mib(self.process.pid)

    def metric(self, process, line):
        """The value of a line of the process's metrics, such as name_sum{label="x"}; the sum over all that begin so."""
        with urllib.request.urlopen(f"http://{self.addresses[process]}/metrics") as reply:
            text = reply.read().decode()
        return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines() if x.startswith(line))

    def stop(self):
        if self.requests is not None:
            self.requests.stdin.close()
            self.requests.wait()
        self.process.terminate()
        self.process.wait()


def memory_mib(pid):
    """What a process and those that it started have in memory, what they share counted once."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        own = next(int(line.split()[1]) for line in f if line.startswith("Pss:")) / 1024
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            children += map(int, f.read().split())
    return own + sum(map(memory_mib, children))


def version(binary=BINARY):
    return subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.strip()


def trace_events(router, request):
    """Of a traced request, what `runahead trace` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        subprocess.run([BINARY, "trace", "--router", router, "--request", request, "-o", path], check=True,
                       stderr=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["traceEvents"]


def fresh_ids(source, count):
    """Ids never used before, so that no engine finds the prompt in a prefix cache."""
    return [source.choice(VOCABULARY) for _ in range(count)]


def turns(sides, tokens, repeats):
    """Calls each side with the same fresh ids, turn about; what each returned by turn, the first turn not counted."""
    source = random.Random(tokens)
    results = [[] for _ in sides]
    for turn in range(repeats + 1):
        ids = fresh_ids(source, tokens)
        for side, result in zip(sides, results):
            value = side(ids)
            if turn > 0:
                result.append(value)
    return results


def summary(figures):
    """(median, least, most)"""
    return statistics.median(figures), min(figures), max(figures)


def in_turn(sides, tokens, repeats):
    """The summary of each side's turns()."""
    return [summary(figures) for figures in turns(sides, tokens, repeats)]


def ratio(figures, others):
    """The median of the ratios turn by turn: what drifts falls on both."""
    return statistics.median(a / b for a, b in zip(figures, others))


def spread(figures):
    return f"{figures[0]:.1f} ({figures[1]:.1f} to {figures[2]:.1f})"


def cpu():
    with open("/proc/cpuinfo") as f:
        lines = f.read().splitlines()
    value = lambda key: next((x.split(":", 1)[1].strip() for x in lines if x.startswith(key)), "unknown")
    flags = value("flags").split()
    known = [x for x in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if x in flags]
    return f"{value('model name')} ({os.cpu_count()} CPUs; {' '.join(known)}), load average {os.getloadavg()[0]:.1f}"


def quick_start_model():
    done = subprocess.run([os.path.join(ROOT, "deploy/model")], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()
