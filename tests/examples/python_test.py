"""The examples in Python and what docs/clients.md says of them, against a real cluster.

usage: python_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import ast
import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import types

sys.dont_write_bytecode = True
import fixture  # noqa: E402, beside this file
import live  # noqa: E402
import page  # noqa: E402

fixture.rerun_with_grpc("the Python examples")
import grpc  # noqa: E402

PROMPT = "The chain hands keys and values on, layer by layer. " * 4


def value(name, text):
    """What an example printed as `name: value`."""
    return ast.literal_eval(re.search(rf"^{name}: (.*)$", text, re.MULTILINE)[1])


def can_make_stubs(command):
    if "grpc_tools" in command:
        return importlib.util.find_spec("grpc_tools") is not None
    return shutil.which("protoc") is not None and shutil.which("grpc_python_plugin") is not None


class StubsTest(fixture.ClusterTest):
    """With stubs that were made as the page says."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ways = [way for way in page.commands("python3 -m grpc_tools.protoc", "protoc") if can_make_stubs(way)]
        assert cls.ways, "neither grpc_tools nor protoc, which deploy/setup installs"
        (cls.folder / "stubs").mkdir()
        subprocess.run(["bash", "-c", cls.ways[0]], cwd=cls.folder, env=cls.environment, check=True)
        cls.environment["PYTHONPATH"] = "stubs"
        cls.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path[:0] = [str(cls.folder / "stubs"), str(page.ROOT / "examples/python")]


class PythonTest(StubsTest):
    def example(self, name, *arguments):
        return self.shell(subprocess.list2cmdline(["python3", f"examples/python/{name}.py", page.ROUTER,
                                                   *map(str, arguments)]))

    def count(self, series):
        return float(re.search(rf"^{re.escape(series)} (\S+)$", self.cluster.page("router"), re.MULTILINE)[1])

    def ended(self, code):
        return self.count(f'runahead_requests_total{{code="{code}",model="synthetic"}}')

    def test_streams_what_the_command_line_gives(self):
        text = self.example("stream", PROMPT, 24)
        wanted = self.answer("--prompt", PROMPT, max_tokens=24)
        self.assertEqual(value("token ids", text), wanted["token_ids"])
        self.assertEqual(value("text", text), wanted["text"])
        self.assertIn("FINISH_REASON_LENGTH after 24 tokens", text)

    def test_shows_plan_and_timing(self):
        text = self.example("stream", PROMPT, 4)
        plan = re.search(r"^plan kvr: (.*), decoded by decode-0$", text, re.MULTILINE)[1]
        parts = [int(tokens) for tokens in re.findall(r"prefill-\d \((\d+)\)", plan)]
        self.assertEqual(sum(parts), int(re.search(r"(\d+) prompt tokens", text)[1]))
        first = float(re.search(r"first token after (\S+) s", text)[1])
        stages = re.search(r"^stages: (.*)$", text, re.MULTILINE)[1].split(", ")
        self.assertEqual(len(stages), 7)
        self.assertAlmostEqual(sum(float(stage.split()[1]) for stage in stages), first, delta=0.0005)  # as rounded

    def test_asks_with_chat_messages(self):
        text = self.example("chat", "Who are you?", "Be short.")
        wanted = self.answer("--message", "system:Be short.", "--message", "user:Who are you?", max_tokens=32)
        self.assertEqual(value("token ids", text), wanted["token_ids"])
        self.assertEqual(value("answer", text), wanted["text"])

    def test_asks_with_token_ids(self):
        text = self.example("token_ids", PROMPT)
        ids = ",".join(map(str, value("prompt ids", text)))
        wanted = self.answer("--token-ids", ids, "--logprobs", "2", max_tokens=16)
        self.assertEqual(value("token ids", text), wanted["token_ids"])
        self.assertEqual(wanted["token_ids"], self.answer("--prompt", PROMPT, max_tokens=16)["token_ids"])
        shown = [f"{one['id']} {one['text']!r} {one['logprob']:.3f}" for one in wanted["logprobs"][0]]
        self.assertIn(f"token {wanted['token_ids'][0]}: {', '.join(shown)}\n", text)

    def test_a_cancelled_request_ends_and_frees_its_lease(self):
        cancelled, generated = self.ended("CANCELLED"), self.count("runahead_generated_tokens_total")
        text = self.example("cancel", PROMPT, 5, fixture.LONG)
        self.assertIn("CANCELLED, as asked for", text)
        self.assertGreaterEqual(len(value("token ids", text)), 5)
        live.until(lambda: self.ended("CANCELLED") > cancelled, "the router has ended it as cancelled")
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")
        self.assertLess(self.count("runahead_generated_tokens_total") - generated, fixture.LONG)

    def test_a_deadline_ends_the_request(self):
        ended = lambda: self.ended("DEADLINE_EXCEEDED") + self.ended("CANCELLED")  # the router may be late to know which
        before = ended()
        text = self.example("deadline", PROMPT, 0.5, fixture.LONG)
        self.assertIn(f"DEADLINE_EXCEEDED after {len(value('token ids', text))} tokens", text)
        live.until(lambda: ended() > before, "the router has ended it, too")
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")

    def test_every_documented_command_runs(self):
        for command in page.commands("python3 examples/python/"):
            with self.subTest(command):
                self.assertIn("token ids: [", self.shell(command))

    def test_stubs_can_be_made_in_every_way_of_the_page(self):
        for number, command in enumerate(page.commands("python3 -m grpc_tools.protoc", "protoc")):
            if command not in self.ways:
                print(f"did not run here: Python stubs by {page.words(command)[0:3]}")
                continue
            with self.subTest(command):
                stubs = f"stubs-{number}"
                (self.folder / stubs).mkdir()
                self.shell(command.replace("stubs", stubs))
                said = self.shell(f"python3 examples/python/retry.py {page.ROUTER} Hello", PYTHONPATH=stubs)
                self.assertEqual(value("token ids", said), self.answer("--prompt", "Hello", max_tokens=16)["token_ids"])

    def test_the_pages_code_is_that_of_the_examples(self):
        code = {path: path.read_text() for path in (page.ROOT / "examples").rglob("*.*") if path.is_file()}
        snippets = page.blocks("python") + page.blocks("cpp")
        self.assertGreater(len(snippets), 4)
        for snippet in snippets:
            # Blocks stand at the left on the page.
            lines = [re.escape(line) for line in snippet.rstrip().split("\n")]
            pattern = re.compile("^ *" + "\n *".join(lines) + "$", re.MULTILINE)
            self.assertTrue(any(pattern.search(text) for text in code.values()), snippet)


class RetryTest(StubsTest):
    """A router that runs one request at a time, and lets one wait."""

    def serve(self, name, *command):
        """The process, and where it listens: {"address", "metrics"}."""
        ready, write = os.pipe()
        process = self.enterContext(live.Process(self.folder, name, [self.runahead.parent / command[0], *command[1:],
                                                                     "--model", self.model, "--ready-fd", write],
                                                 pass_fds=[write]))
        os.close(write)
        with os.fdopen(ready) as line:
            text = line.readline()
        if not text:
            process.process.wait(live.PATIENCE)
            process.check()
        return process.process, json.loads(text)

    def start_router(self, *arguments):
        self.running, self.router = self.serve("router", "runahead-router", "--queue-size", "1", "--max-streams", "1",
                                               f"--workers=role=both,address={self.worker['address']}", *arguments)
        health = [self.runahead, "health", "--address", self.router["address"]]
        live.until(lambda: subprocess.run(health, capture_output=True, check=False).returncode == 0, "the router serves")

    def setUp(self):
        _, self.worker = self.serve("worker", "runahead-worker", "--role", "both", "--threads", "1", "--dtype", "f32")
        self.start_router()
        self.pb = importlib.import_module("runahead.v1.inference_pb2")
        services = importlib.import_module("runahead.v1.inference_pb2_grpc")
        self.retry = importlib.import_module("retry")
        self.stub = services.InferenceStub(self.enterContext(grpc.insecure_channel(self.router["address"])))

    def gauge(self, series):
        text = live.fetch(f"http://{self.router['metrics']}/metrics")
        return float(re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)[1])

    def long_request(self):
        stop = self.pb.StopConditions(max_tokens=fixture.LONG, ignore_eos=True)
        return self.stub.Generate(self.pb.GenerateRequest(prompt="Hello", stop=stop))

    def test_asks_again_after_the_time_that_the_service_names(self):
        running = self.long_request()
        self.assertEqual(next(running).WhichOneof("event"), "started")
        waiting = self.long_request()
        live.until(lambda: self.gauge('runahead_queue_depth{priority="normal"}') == 1, "one request waits")
        request = self.pb.GenerateRequest(prompt="Hello", stop=self.pb.StopConditions(max_tokens=16))
        with self.assertRaises(grpc.RpcError) as refused:
            list(self.stub.Generate(request))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        status_pb = importlib.import_module("runahead.v1.status_pb2")
        trailer = dict(refused.exception.trailing_metadata())["grpc-status-details-bin"]
        info = status_pb.RetryInfo.FromString(status_pb.RpcStatus.FromString(trailer).details[0].value)
        named = info.retry_delay.ToTimedelta().total_seconds()
        self.assertGreater(named, 0)
        slept = []

        def sleep(seconds):  # in place of time.sleep: the queue becomes empty meanwhile
            slept.append(seconds)
            running.cancel()
            waiting.cancel()
            live.until(lambda: self.gauge("runahead_requests_in_flight") == 0, "the others are gone")

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            ids = self.retry.generate(self.stub, request, sleep=sleep)
        self.assertEqual(slept, [named])
        self.assertIn(f"asking again in {named:g} s", said.getvalue())
        self.assertEqual(ids, self.answer("--prompt", "Hello", max_tokens=16)["token_ids"])

    def test_goes_on_behind_what_came_when_the_router_dies(self):
        stop = self.pb.StopConditions(max_tokens=1500, ignore_eos=True)
        request = self.pb.GenerateRequest(prompt="Hello", stop=stop, sampling=self.pb.SamplingParams(temperature=0.8))
        asked, seeds = [], []

        def generate(again):  # the first answer breaks off behind its tenth token
            asked.append(len(again.output_ids))
            came = 0
            for response in self.stub.Generate(again):
                if response.HasField("started"):
                    seeds.append(response.started.seed)
                came += len(response.tokens.ids)
                yield response
                if len(seeds) == 1 and came >= 10:
                    self.running.kill()

        def sleep(seconds):
            if len(asked) == 1:
                self.start_router("--listen", self.router["address"])
            time.sleep(seconds)

        with contextlib.redirect_stdout(io.StringIO()):
            ids = self.retry.generate(types.SimpleNamespace(Generate=generate), request, tries=20, sleep=sleep)
        self.assertGreater(asked[-1], 9)
        self.assertEqual(seeds, [seeds[0]] * 2)
        request.sampling.seed = seeds[0]
        self.assertEqual(ids, [token for response in self.stub.Generate(request) for token in response.tokens.ids])

    def test_every_example_brings_the_api_key_of_the_environment(self):
        made = json.loads(subprocess.run([self.runahead, "keys", "new", "alice", "--json"], stdout=subprocess.PIPE,
                                         timeout=live.PATIENCE, check=True).stdout)
        keys = self.folder / "api-keys.yaml"
        keys.write_text(f"keys: [{{name: {made['name']}, hash: {made['hash']}}}]")
        self.running.kill()
        self.running.wait(live.PATIENCE)
        self.start_router("--api-keys", keys)
        for name in ("cancel", "chat", "deadline", "retry", "stream", "token_ids"):
            command = ["python3", f"examples/python/{name}.py", self.router["address"], "Hello"]
            with self.subTest(name):
                self.assertIn("token ids: [", self.shell(subprocess.list2cmdline(command), RUNAHEAD_API_KEY=made["key"]))
                refused = subprocess.run(command, cwd=self.folder, env=self.environment, text=True, capture_output=True,
                                         timeout=live.PATIENCE, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("UNAUTHENTICATED", refused.stderr)

    def test_gives_up_where_asking_again_is_of_no_use(self):
        request = self.pb.GenerateRequest(prompt="Hello", stop=self.pb.StopConditions(max_tokens=-1))
        with self.assertRaises(grpc.RpcError) as refused:
            self.retry.generate(self.stub, request, sleep=lambda _: self.fail("it waits"))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


if __name__ == "__main__":
    fixture.main()
