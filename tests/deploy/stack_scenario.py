"""The stack of deploy/compose on podman, from `up` to `down`; run by stack.sh in namespaces of its own."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import stack_smg
from stack_load import Load

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSES = ("prefill-0", "prefill-1", "prefill-2", "decode-0", "router", "gateway")
PATIENCE = 180  # seconds, on a machine that does other things
LONG_PROMPT = "The chain hands keys and values on, layer by layer. " * 12


def say(text):
    print(f"   {time.strftime('%H:%M:%S')} {text}", flush=True)


def podman(*arguments, check=True):
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=check).stdout.strip()


def name_of(service):
    return f"runahead_{service}_1"


def clear():
    """What a run that was killed has left, too: nobody else keeps containers where stack.sh does."""
    podman("rm", "-af", "-t", "0", check=False)
    podman("volume", "prune", "-f", check=False)
    podman("network", "prune", "-f", check=False)


class HealthTimer:
    """podman asks containers how they are by timers of systemd, which does not run here: this asks instead."""

    def __enter__(self):
        script = ("while sleep 1; do for c in $(podman ps --format '{{.Names}}'); do "
                  "podman healthcheck run $c; done; done")
        self.process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class NameWatch:
    """For how long podman's name server did not know the router, or said nothing: no fault of what is tested."""

    def __init__(self):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.silent = 0.0

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def run(self):
        while not self.stop.wait(0.5):
            begin = time.monotonic()
            ask = ["podman", "exec", "client", "timeout", "2", "getent", "hosts", "router"]
            if subprocess.run(ask, capture_output=True, check=False).returncode != 0:
                self.silent += time.monotonic() - begin + 0.5

    def take(self):
        silent, self.silent = self.silent, 0.0
        return silent


class Stack:
    def __init__(self, folder):
        self.folder = folder

    def compose(self, *arguments):
        run = subprocess.run(["docker-compose", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"docker-compose {arguments}: {run.stdout}{run.stderr}")

    def up(self, *arguments):
        subprocess.run([self.folder / "up", "--no-build", *arguments], check=True)

    def generate(self, prompt, tokens=8):
        """The answer, from a client in a container of its own. A chain computes it, however often it is asked."""
        text = podman("exec", "client", "runahead", "generate", "--router", "router:7000", "--prompt", prompt,
                      "--max-tokens", str(tokens), "--ignore-eos", "--no-cache", "--json")
        answer = json.loads(text)
        assert answer["usage"]["completion_tokens"] == tokens, answer
        return answer

    def chat(self, question, tokens=8):
        """The answer by the gateway's published port, as curl would ask it from this host."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens}
        request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            answer = json.load(reply)
        assert 1 <= answer["usage"]["completion_tokens"] <= tokens, answer
        return answer["choices"][0]["message"]["content"]

    def wait_for_chain(self, *workers):
        """Until a long prompt takes all of `workers`. Who is told to ask again does so, and so does a client that did not
        reach the router: podman's name server loses a question now and then while containers come and go."""
        deadline = time.monotonic() + PATIENCE
        chain = None
        while chain != list(workers):
            assert time.monotonic() < deadline, f"the chain is {chain}, not {workers}"
            time.sleep(0.5)
            try:
                chain = self.generate(LONG_PROMPT)["plan"]["workers"]
            except subprocess.CalledProcessError as error:
                say(f"refused: {error.stderr.strip()}")
                assert "UNAVAILABLE" in error.stderr
                assert "try again" in error.stderr or "no answer from router" in error.stderr

    def wait_for_workers(self, prefill, decode):
        """Until the router has so many. Under load a prompt may get fewer than there are."""
        deadline = time.monotonic() + PATIENCE
        while True:
            text = podman("exec", "client", "runahead", "models", "--router", "router:7000", "--json", check=False)
            models = json.loads(text)["models"] if text else []
            if [(m["prefill_workers"], m["decode_workers"]) for m in models] == [(prefill, decode)]:
                return
            assert time.monotonic() < deadline, f"the router has {models}"
            time.sleep(0.5)

    def wait_for_health(self, service):
        """Until its container's own check says that it serves."""
        deadline = time.monotonic() + PATIENCE
        check = ["podman", "healthcheck", "run", name_of(service)]
        while subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            assert time.monotonic() < deadline, f"{service} is not healthy"
            time.sleep(0.5)

    def wait_for_scrape(self, *names):
        """Until Prometheus reads metrics of just these processes."""
        query = "http://127.0.0.1:9090/api/v1/query?query=" + urllib.parse.quote('up{job="runahead"} == 1')
        deadline = time.monotonic() + PATIENCE
        found = None
        while found != sorted(names):
            assert time.monotonic() < deadline, f"Prometheus reads {found}, not {names}"
            time.sleep(1)
            with contextlib.suppress(OSError), urllib.request.urlopen(query, timeout=5) as answer:
                found = sorted(r["metric"]["instance"] for r in json.load(answer)["data"]["result"])

    def wait_for_rules(self):
        """Until Prometheus has evaluated all rules of the repository, and no others, without a fault."""
        groups = sorted(group for path in (ROOT / "deploy/prometheus/rules").glob("*.yaml")
                        for group in re.findall(r"(?m)^  - name: (\S+)$", path.read_text()))
        url = "http://127.0.0.1:9090/api/v1/rules"
        deadline = time.monotonic() + PATIENCE
        found, health = [], set()
        while (found, health) != (groups, {"ok"}):
            assert time.monotonic() < deadline, f"Prometheus has the rules {found}, {health}, not {groups}"
            time.sleep(1)
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                loaded = json.load(answer)["data"]["groups"]
                found = sorted(group["name"] for group in loaded)
                health = {rule["health"] for group in loaded for rule in group["rules"]}

    def end(self, service):
        """How its container stands and with what its process ended: a running one has an exit code, too."""
        return podman("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", name_of(service))


def check_images(smg):
    """What the built images run as and have, against the Dockerfile's words by dockerfile_test.py."""
    serves = ["CMD", "runahead", "health", "--address", "127.0.0.1:7000"]
    for name, health in (("runahead:cpu", serves), ("runahead:model", ["NONE"]), *[("runahead:smg", ["NONE"])] * smg):
        (image,) = json.loads(podman("image", "inspect", name))
        assert image["Config"]["Entrypoint"] == ["/usr/bin/tini", "--"], image["Config"]
        assert image["Config"]["User"] == "10001:10001", image["Config"]
        assert image["Healthcheck"]["Test"] == health, image["Healthcheck"]
        labels = {label.rpartition(".")[2]: text for label, text in image["Labels"].items()
                  if label.startswith("org.opencontainers.image.")}
        assert labels.keys() == {"title", "description", "version", "revision"} and all(labels.values()), labels
        tools = "for tool in gcc g++ cc c++ clang cmake ninja make; do command -v $tool; done; echo no more"
        assert podman("run", "--rm", name, "sh", "-c", tools) == "no more", f"{name} has tools to build"


def scenario(stack, model, smg, rolling):
    check_images(smg)
    say("the images are as the Dockerfile says, without tools to build")
    # What `runahead pull` would fetch: no registry is reached from here. The service checks it by its SHA-256.
    podman("volume", "create", "runahead_models")
    volume = pathlib.Path(podman("volume", "inspect", "-f", "{{.Mountpoint}}", "runahead_models"))
    (volume / "runahead").mkdir()
    shutil.copy(model, volume / "runahead")
    os.chown(volume / "runahead", 10001, 10001)

    # The client is there from the beginning: podman's name server ends with the last container of a network, and is not
    # always there again when the next ones start.
    podman("network", "create", "--label", "com.docker.compose.project=runahead",
           "--label", "com.docker.compose.network=default", "runahead_default")
    podman("run", "-d", "--name", "client", "--network", "runahead_default", "runahead:cpu", "sleep", "infinity")
    begin = time.monotonic()
    stack.up("prometheus", "gateway")  # with all that they depend on: everything but Grafana
    say(f"up after {time.monotonic() - begin:.1f} s")
    stack.wait_for_chain("prefill-0", "prefill-1")
    say(f"answered by two: {stack.generate('The capital of France is')['text']!r}")
    stack.wait_for_health("gateway")
    say(f"the gateway answers a chat: {stack.chat('Name the capital of France.')!r}")
    stack.wait_for_scrape("router", "prefill-0", "prefill-1", "decode-0", "gateway")
    stack.wait_for_rules()
    say("Prometheus reads five processes, and has all rules")

    if smg:
        before_smg(stack)

    stack.compose("up", "-d", "prefill-2")
    stack.wait_for_chain("prefill-0", "prefill-1", "prefill-2")
    stack.wait_for_scrape(*PROCESSES)
    say("answered by three, all of them scraped")

    stack.compose("stop", "prefill-2")
    assert stack.end("prefill-2") == "exited 0", stack.end("prefill-2")
    stack.wait_for_chain("prefill-0", "prefill-1")
    say("one was stopped; answered by two")

    if rolling:
        roll(stack)

    stack.compose("stop")
    for service in PROCESSES:
        assert stack.end(service) == "exited 0", f"{service}: {stack.end(service)}"
    podman("rm", "-f", "-t", "0", "client")
    # Compose 2 leaves prefill-2 alone where its profile is not named.
    stack.compose("--profile", "wider", "down", "--volumes")
    left = podman("ps", "-aq"), podman("volume", "ls", "-q"), podman("network", "ls", "-q", "-f", "name=runahead")
    assert left == ("", "", ""), left
    say("down; every process ended with 0, and nothing is left")


def before_smg(stack):
    """The profile smg, as docs/deploy.md has it started: answers, a refusal, and its end."""
    stack.compose("--profile", "smg", "up", "-d", "smg")
    stack.wait_for_health("smg")
    say(f"SMG answers as the gateway does: {stack_smg.ask('Name the capital of France.')!r}")
    command = json.loads(podman("inspect", "-f", "{{json .Config.Cmd}}", name_of("smg")))
    (limit,) = [int(word.partition("=")[2]) for word in command if word.startswith("--max-concurrent-requests=")]
    say(f"one request more than {limit} gets 429 from it, and may come again after {stack_smg.overload(limit)} s")
    stack_smg.wait_until_it_answers("Name the capital of Italy.")
    stack.compose("stop", "smg")
    assert stack.end("smg") == "exited 0", stack.end("smg")
    stack.compose("rm", "-f", "smg")
    say("it answers behind that, and ended with 0")


def roll(stack):
    """Replaces every process under load, and says what was not answered: that may only be what can be sent again."""
    stack.compose("up", "-d", "prefill-2")
    stack.wait_for_chain("prefill-0", "prefill-1", "prefill-2")
    with NameWatch() as names, Load(stack.generate, LONG_PROMPT) as load:
        for service in PROCESSES:
            load.begin()
            names.take()
            time.sleep(4)
            begin = time.monotonic()
            stack.compose("up", "-d", "--no-deps", "--force-recreate", service)
            took = time.monotonic() - begin
            stack.wait_for_workers(prefill=3, decode=1)
            time.sleep(4)
            say(f"replaced {service} in {took:.1f} s: {load.end()} (no name for the router for {names.take():.0f} s)")
            assert not load.lost(), load.lost()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--smg", action="store_true")
    parser.add_argument("--rolling", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # A copy: the key and .env of whoever runs this stay as they are.
        shutil.copytree(ROOT / "deploy", f"{folder}/deploy", ignore=shutil.ignore_patterns(".env", "cluster.key*"))
        socket = f"{folder}/podman.sock"
        os.environ["DOCKER_HOST"] = f"unix://{socket}"
        # It complains of every health check that there is no systemd.
        service = subprocess.Popen(["podman", "system", "service", "-t", "0", f"unix://{socket}"], stderr=subprocess.DEVNULL)
        try:
            clear()
            with HealthTimer():
                scenario(Stack(pathlib.Path(folder, "deploy/compose")), arguments.model, arguments.smg,
                         arguments.rolling)
        except BaseException as error:
            for name in podman("ps", "-a", "--format", "{{.Names}}").split():
                print(f"-- the last messages of {name}", flush=True)
                subprocess.run(["podman", "logs", "--tail", "20", name], stderr=subprocess.STDOUT, check=False)
            print(getattr(error, "stderr", ""), file=sys.stderr)
            raise
        finally:
            clear()
            service.terminate()
            service.wait()


if __name__ == "__main__":
    main()
