"""A local cluster and a Prometheus that scrapes it, for tests."""

import json
import math
import os
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = 60  # seconds that anything here may take


def until(wanted, what, patience=PATIENCE):
    """What `wanted` gives as soon as that is true. A poll: who is waited for is another process."""
    end = time.monotonic() + patience
    while not (got := wanted()):
        if time.monotonic() > end:
            raise AssertionError(f"after {patience} s still not: {what}")
        time.sleep(0.05)
    return got


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:  # Prometheus says what is wrong with a query in the body
        return error.read().decode()
    except OSError:
        return ""


class Process:
    """`command` until the block ends; what it writes goes to a file of `folder`."""

    def __init__(self, folder, name, command, **more):
        self.log = pathlib.Path(folder, f"{name}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(list(map(str, command)), stderr=log, stdin=subprocess.DEVNULL, **more)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            if self.process.stdout:
                self.process.stdout.close()

    def check(self):
        if self.process.poll() is not None:
            said = self.log.read_text()[-3000:]
            raise AssertionError(f"{self.process.args} ended with {self.process.returncode}:\n{said}")


class Cluster(Process):
    """`runahead up`; `metrics` are the addresses by name, `pids` the first processes."""

    def __init__(self, folder, runahead, *arguments):
        super().__init__(folder, "cluster", [runahead, "up", "--json", *arguments], stdout=subprocess.PIPE, text=True)
        self.runahead = runahead
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self.check()
        ready = json.loads(line)
        self.router, self.metrics, self.pids = ready["router"], ready["metrics"], ready["pids"]
        self.http = ready.get("http")  # base URL of the OpenAI API

    def page(self, name):
        return fetch(f"http://{self.metrics[name]}/metrics")

    def generate(self, tokens, *arguments):
        """Asks for a prompt of so many tokens, and gives the exit code."""
        ids = ",".join(str(3 + i % 256) for i in range(tokens))
        command = [self.runahead, "generate", "--router", self.router, "--token-ids", ids, "--ignore-eos", *arguments]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE,
                              check=False).returncode


def listening_port(pid):
    """The TCP port that the process listens on, 0 while there is none: a Prometheus does not say which one it took."""
    try:
        files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except FileNotFoundError:  # a file that was closed meanwhile
        return 0
    sockets = {found[1] for name in files if (found := re.fullmatch(r"socket:\[(\d+)\]", name))}
    for line in pathlib.Path("/proc/net/tcp").read_text().split("\n")[1:]:
        words = line.split()
        if words and words[3] == "0A" and words[9] in sockets:  # LISTEN
            return int(words[1].split(":")[1], 16)
    return 0


class Prometheus(Process):
    """Debian's, with the rules of deploy/prometheus, on the metrics ports of `targets` {instance: address}."""

    def __init__(self, folder, rules, targets):
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "runahead", "static_configs": [
                {"targets": [address], "labels": {"instance": name}} for name, address in targets.items()]}],
        }
        path = pathlib.Path(folder, "prometheus.yaml")
        path.write_text(json.dumps(config))  # YAML, too
        super().__init__(folder, "prometheus", [
            "prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0"])
        self.port = until(self.port_now, "Prometheus listens")
        until(lambda: "is Ready" in fetch(f"http://127.0.0.1:{self.port}/-/ready"), "Prometheus is ready")

    def port_now(self):
        self.check()
        return listening_port(self.process.pid)

    def ask(self, path, **parameters):
        """The data of the answer; raises where Prometheus finds fault with the question."""
        text = fetch(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(text or '{"status": "no answer"}')
        if answer["status"] != "success":
            raise AssertionError(f"{parameters}: {answer.get('error', text)}")
        return answer["data"]

    def query(self, expression):
        """[(labels, value)] of now."""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]

    def fault(self, expression):
        """Why the answer is not data: nothing, or not a number in it; or None."""
        values = self.query(expression)
        if not values:
            return "no data"
        return "NaN" if any(math.isnan(value) for _, value in values) else None
