"""Replaces every process of a local cluster under load, one after the other, and prints what became of the requests:
what stack.sh --rolling does with containers, without any. SIGTERM ends each, and `runahead up` starts it anew.

usage: rolling.py [RUNAHEAD [MODEL]]     build/bin/runahead and the quick-start model where they are left out

Exit code: 0 if every process ended with 0 and nothing was lost but what may be sent again (UNAVAILABLE); 1 otherwise.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import live  # noqa: E402, beside this file
from stack_load import Load  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFILL, DECODE = 3, 1
LONG_PROMPT = "The chain hands keys and values on, layer by layer. " * 12
UNDER_LOAD = 4  # seconds before and after each replacement


class Rolling:
    def __init__(self, folder, runahead, model):
        self.runahead = runahead
        self.cluster = live.Cluster(folder, runahead, "--model", model, "--prefill", PREFILL, "--decode", DECODE)

    def run(self, *arguments):
        return subprocess.run([self.runahead, *arguments], capture_output=True, text=True, check=True).stdout

    def generate(self, prompt, tokens):
        self.run("generate", "--router", self.cluster.router, "--prompt", prompt, "--max-tokens", str(tokens),
                 "--ignore-eos", "--json")

    def whole(self):
        """Whether the router serves, and has all workers."""
        try:
            self.run("health", "--address", self.cluster.router)
            models = json.loads(self.run("models", "--router", self.cluster.router, "--json"))["models"]
        except subprocess.CalledProcessError:
            return False
        return [(one["prefill_workers"], one["decode_workers"]) for one in models] == [(PREFILL, DECODE)]

    def log(self):
        return self.cluster.log.read_text()

    def replace(self, name, pid):
        """Seconds until it had ended, and until all was whole again."""
        begin = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        live.until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), f"{name} ends", patience=90)
        ended = time.monotonic() - begin
        live.until(lambda: f"[up] {name} serves again" in self.log(), f"{name} serves again", patience=90)
        live.until(self.whole, f"the router has {name} again", patience=90)
        return ended, time.monotonic() - begin


def main(runahead=ROOT / "build/bin/runahead", model=None):
    model = model or subprocess.run([ROOT / "deploy/model"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    lost = []
    with tempfile.TemporaryDirectory() as folder:
        rolling = Rolling(folder, pathlib.Path(runahead).resolve(), model)
        with rolling.cluster, Load(rolling.generate, LONG_PROMPT) as load:
            for name, pid in sorted(rolling.cluster.pids.items(), key=lambda item: item[0] == "router"):
                load.begin()
                time.sleep(UNDER_LOAD)
                ended, whole = rolling.replace(name, pid)
                time.sleep(UNDER_LOAD)
                lost += load.lost()
                print(f"replaced {name}: ended after {ended:.1f} s, whole after {whole:.1f} s: {load.end()}", flush=True)
        ends = re.findall(r"\[up\] (\S+ (?:ended with exit code|was ended by signal) [^;]*)", rolling.log())
    bad = [end for end in ends if not end.endswith("exit code 0")]
    print("\n".join(bad) or "every process ended with 0")
    return 1 if lost or bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
