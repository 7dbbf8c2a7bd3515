"""Clients that ask again and again while processes are replaced, and what became of their requests."""

import collections
import re
import subprocess
import threading

CLIENTS = 3


def shown(stderr):
    """"UNAVAILABLE: no decode worker is ready": code and cause, without addresses and whatever else follows."""
    last = (stderr.strip().splitlines() or ["no word"])[-1]
    return re.match(r"(?:runahead generate: )?(\w+: [^:;]*|.*)", last).group(1)


class Load:
    """`generate(prompt, tokens)` raises CalledProcessError where the service fails."""

    def __init__(self, generate, prompt):
        self.generate = generate
        self.prompt = prompt
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(CLIENTS)]

    def __enter__(self):
        self.outcomes = collections.Counter()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def run(self):
        while not self.stop.is_set():
            try:
                self.generate(self.prompt, tokens=16)
                outcome = "answered"
            except subprocess.CalledProcessError as error:
                outcome = shown(error.stderr)
                self.stop.wait(0.2)
            with self.lock:
                self.outcomes[outcome] += 1

    def begin(self):
        with self.lock:
            self.outcomes.clear()

    def lost(self):
        """Outcomes since begin() that no replacement may bring. What ends with UNAVAILABLE may be sent again; "UNAVAILABLE:
        no answer from router" is podman's name server."""
        with self.lock:
            return [one for one in self.outcomes if one != "answered" and not one.startswith("UNAVAILABLE: ")]

    def end(self):
        """What became of the requests that ended since begin()."""
        with self.lock:
            return "; ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
