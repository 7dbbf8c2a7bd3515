"""SMG, a gateway of the field, as it is, in front of engines, for tests."""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))
import live  # noqa: E402


def free_ports(count):
    """Ports that were free just now: SMG does not say which one it took."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Smg(live.Process):
    """SMG in front of `engines`, {the model's name: its address}, which give it their tokenizers, until the block ends."""

    STARTS = 5  # at most: somebody else may take a port before SMG does

    def __init__(self, folder, engines, *arguments):
        self.models = list(engines)
        for left in reversed(range(self.STARTS)):
            port, metrics = free_ports(2)
            super().__init__(folder, f"smg-{port}", [
                sys.executable, "-m", "smg.launch_router", "--host", "127.0.0.1", "--port", port, "--worker-urls",
                *(f"grpc://{address}" for address in engines.values()), "--prometheus-host", "127.0.0.1",
                "--prometheus-port", metrics, *arguments], stdout=subprocess.DEVNULL, cwd=folder)
            self.root = f"http://127.0.0.1:{port}"
            try:
                live.until(self.serves, "SMG serves the models")
                return
            except BaseException:
                ended = self.process.poll() is not None
                self.__exit__()
                if not (ended and left):
                    raise

    def serves(self):
        self.check()
        listed = live.fetch(f"{self.root}/v1/models")
        if not all(f'"{model}"' in listed for model in self.models):
            return False
        # And it has their tokenizers.
        return all(self.post("/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 1})[0] == 200
                   for model in self.models)

    def open(self, path, body):
        request = urllib.request.Request(self.root + path, json.dumps({"model": self.models[0], **body}).encode(),
                                         {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=live.PATIENCE)

    def post(self, path, body):
        """Status and JSON of the answer."""
        try:
            with self.open(path, body) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def streamed(self, path, body):
        with self.open(path, {**body, "stream": True, "stream_options": {"include_usage": True}}) as reply:
            lines = reply.read().decode().split("\n")
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]
