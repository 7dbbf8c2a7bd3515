"""SMG, a gateway of the field, as it is, in front of the router's engine service: docs/engine.md.

usage: smg_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402
import smg_process  # noqa: E402, beside this file
import tools  # noqa: E402

try:
    import openai
    import pydantic
except ImportError:
    openai = None

TEXTS = ("hello", "the chain hands keys and values on", "numbers 12 345 and { \"json\": [1] }",
         "é ü 漢字 \U0001f600\n  two lines", "in and of the other", "who are you?", "0")
GREEDY = {"temperature": 0, "seed": 7}


def whole(text):
    """What stands before the first thing that is no text: SMG tells it otherwise, or not at all, where nothing follows."""
    return (text or "").partition("\ufffd")[0]


class SmgTest(fixture.ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.smg = cls.enterClassContext(smg_process.Smg(cls.folder, {"synthetic": cls.cluster.router}, "--disable-retries"))

    def test_a_chat_is_answered_as_the_router_answers_it(self):
        characters = 0
        for text in TEXTS:
            with self.subTest(text):
                wanted = self.answer("--message", f"user:{text}", max_tokens=12)
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **GREEDY}
                status, answer = self.smg.post("/v1/chat/completions", body)
                self.assertEqual(status, 200, answer)
                self.assertEqual(whole(answer["choices"][0]["message"]["content"]), whole(wanted["text"]))
                characters += len(whole(wanted["text"]))
                self.assertEqual(answer["choices"][0]["finish_reason"], wanted["finish_reason"])
                self.assertEqual(answer["usage"]["prompt_tokens"], wanted["usage"]["prompt_tokens"])
                self.assertEqual(answer["usage"]["completion_tokens"], wanted["usage"]["completion_tokens"])
                events = self.smg.streamed("/v1/chat/completions", body)
                pieces = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
                self.assertEqual(whole("".join(pieces)), whole(wanted["text"]))
                self.assertEqual(events[-1]["usage"]["completion_tokens"], wanted["usage"]["completion_tokens"])
        self.assertGreater(characters, 12, "of all answers that were compared")

    def test_a_prompt_is_completed_as_the_router_completes_it(self):
        characters = 0
        for text in TEXTS:
            with self.subTest(text):
                wanted = self.answer("--prompt", text, max_tokens=12)
                body = {"prompt": text, "max_tokens": 12, **GREEDY}
                status, answer = self.smg.post("/v1/completions", body)
                self.assertEqual(status, 200, answer)
                self.assertEqual(whole(answer["choices"][0]["text"]), whole(wanted["text"]))
                self.assertEqual(answer["usage"]["prompt_tokens"], wanted["usage"]["prompt_tokens"])
                characters += len(whole(wanted["text"]))
                pieces = [event["choices"][0]["text"] for event in self.smg.streamed("/v1/completions", body)
                          if event["choices"]]
                self.assertEqual(whole("".join(pieces)), whole(wanted["text"]))
        self.assertGreater(characters, 12, "of all answers that were compared")

    def test_several_answers_come_in_one_call(self):
        asked = self.requests("OK")
        body = {"messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 12, "seed": 3}
        status, answer = self.smg.post("/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(sorted(choice["index"] for choice in answer["choices"]), [0, 1, 2])
        self.assertEqual(len({choice["message"]["content"] for choice in answer["choices"]}), 3)
        self.assertEqual(self.requests("OK"), asked + 1)

    def test_a_stop_string_ends_the_same_text(self):
        text = self.answer("--prompt", TEXTS[1], max_tokens=24)["text"]
        # One that stands inside a token where the vocabulary has such, and behind which more would come.
        stop = text[len(text) // 2:len(text) // 2 + 2]
        wanted = self.answer("--prompt", TEXTS[1], "--stop", stop, max_tokens=24)
        self.assertEqual(wanted["finish_reason"], "stop")
        body = {"prompt": TEXTS[1], "stop": [stop], "max_tokens": 24, **GREEDY}
        status, answer = self.smg.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["text"], wanted["text"])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        pieces = [event["choices"][0]["text"] for event in self.smg.streamed("/v1/completions", body) if event["choices"]]
        self.assertEqual("".join(pieces), wanted["text"])

    def test_log_probabilities_are_the_routers(self):
        wanted = self.answer("--message", "user:hello", "--logprobs", "3", max_tokens=6)["logprobs"]
        status, answer = self.smg.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 3, "max_tokens": 6,
            **GREEDY})
        self.assertEqual(status, 200, answer)
        tokens = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(tokens), len(wanted))
        for token, ours in zip(tokens, wanted, strict=True):
            self.assertAlmostEqual(token["logprob"], ours[0]["logprob"], delta=1e-3)
            self.assertEqual(len(token["top_logprobs"]), 3)

    def test_an_answer_has_the_form_that_is_asked_for(self):
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
                  "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        answer = self.formed({"response_format": form})
        self.assertIn(json.loads(answer["choices"][0]["message"]["content"]), ({"yes": True}, {"yes": False}))

    def test_the_tool_that_is_named_is_called(self):
        tool = {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"],
            "additionalProperties": False}}}
        answer = self.formed({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "weather"}}})
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "weather")
        self.assertIn(json.loads(call["function"]["arguments"]), ({"hot": True}, {"hot": False}))

    def test_a_tool_is_called_where_one_must_be(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"],
            "additionalProperties": False}}} for name in ("weather", "water")]
        answer = self.formed({"tools": tools, "tool_choice": "required"})
        if answer["choices"][0]["finish_reason"] == "length":  # a model of noise may go on with calls
            return
        for call in answer["choices"][0]["message"]["tool_calls"]:
            self.assertIn(call["function"]["name"], ("weather", "water"))
            self.assertIn(json.loads(call["function"]["arguments"]), ({"hot": True}, {"hot": False}))

    def formed(self, form):
        """The answer to a chat that asks for a form; skips where the build has none."""
        status, answer = self.smg.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "hello"}], "max_tokens": 200, **GREEDY, **form})
        if status != 200 and "this build has no structured output" in json.dumps(answer):
            fixture.skip(self, "forms of answers through SMG: this build has no structured output")
        self.assertEqual(status, 200, answer)
        return answer

    def test_what_the_router_refuses_is_the_clients_error(self):
        status, answer = self.smg.post("/v1/completions", {"prompt": "hello", "max_tokens": 10 * fixture.CONTEXT})
        self.assertEqual(status, 400, answer)
        self.assertIn("max_tokens", answer["error"]["message"])
        self.assertEqual(self.smg.post("/v1/completions", {"prompt": "go on", "max_tokens": 1})[0], 200)

    def test_a_closed_stream_ends_its_request(self):
        with self.smg.open("/v1/completions", {"prompt": "hello", "max_tokens": fixture.LONG, "ignore_eos": True,
                                               "stream": True}) as reply:
            reply.readline()
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")

    def requests(self, code):
        return requests_of(self.cluster.page("router"), code)


if openai is not None:
    class Weather(pydantic.BaseModel):
        """What the weather is like."""
        hot: bool


@fixture.unittest.skipIf(openai is None, "no openai SDK")
class SdkTest(fixture.ClusterTest):
    """The openai SDK before SMG: what it does before our own gateway, too (http_test.py)."""
    MESSAGES = [{"role": "user", "content": "Who are you?"}]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        smg = cls.enterClassContext(smg_process.Smg(cls.folder, {"synthetic": cls.cluster.router}, "--disable-retries"))
        client = openai.OpenAI(base_url=f"{smg.root}/v1", api_key="none", max_retries=0, timeout=live.PATIENCE)
        cls.client = cls.enterClassContext(client)

    def asked(self, **more):
        return {"model": "synthetic", "messages": self.MESSAGES, "max_tokens": 12, "seed": 3, "temperature": 0, **more}

    def chat(self, **more):
        return self.client.chat.completions.create(**self.asked(**more))

    def formed(self, make):
        """What `make` gives of a form; skips where the build has none."""
        try:
            return make()
        except openai.APIStatusError as error:
            if "this build has no structured output" in str(error):
                fixture.skip(self, "forms of answers through SMG: this build has no structured output")
            raise

    def test_lists_the_model(self):
        self.assertEqual([model.id for model in self.client.models.list().data], ["synthetic"])

    def test_streams_what_it_gives_at_once(self):
        answer = self.chat()
        events = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        self.assertEqual(whole(text), whole(answer.choices[0].message.content))
        self.assertEqual(events[-1].usage.total_tokens, answer.usage.total_tokens)
        self.assertEqual(len({event.id for event in events}), 1)

    def test_completes_a_prompt(self):
        asked = {"model": "synthetic", "prompt": "hello", "max_tokens": 12, "temperature": 0}
        answer = self.client.completions.create(**asked)
        events = self.client.completions.create(**asked, stream=True)
        text = "".join(event.choices[0].text for event in events if event.choices)
        self.assertEqual(whole(text), whole(answer.choices[0].text))
        self.assertEqual(answer.usage.completion_tokens, 12)

    def test_log_probabilities_are_those_of_the_tokens(self):
        tokens = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(len(tokens), 12)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)  # greedy

    def test_several_choices_differ_and_come_again(self):
        first = [choice.message.content for choice in self.chat(n=3, temperature=1).choices]
        self.assertEqual(len(set(first)), 3)
        self.assertEqual([choice.message.content for choice in self.chat(n=3, temperature=1).choices], first)
        streamed = ["", "", ""]
        for event in self.chat(n=3, temperature=1, stream=True):
            for choice in event.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual([whole(text) for text in streamed], [whole(text) for text in first])

    def test_an_answer_is_parsed_as_the_class_that_it_was_asked_as(self):
        asked = self.asked(response_format=Weather, max_tokens=200)
        answer = self.formed(lambda: self.client.chat.completions.parse(**asked))
        self.assertIsInstance(answer.choices[0].message.parsed, Weather)

    def test_calls_of_tools_are_put_together_of_a_stream(self):
        asked = self.asked(tools=[openai.pydantic_function_tool(Weather, name="weather")], max_tokens=200,
                           tool_choice={"type": "function", "function": {"name": "weather"}})
        (call,) = self.formed(lambda: self.client.chat.completions.parse(**asked)).choices[0].message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        with self.client.chat.completions.stream(**asked) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        self.assertEqual(streamed.function.parsed_arguments, call.function.parsed_arguments)

    def test_errors_are_the_sdks(self):
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.chat(max_tokens=10 * fixture.CONTEXT)
        self.assertIn("max_tokens", str(wrong.exception))
        with self.assertRaises(openai.BadRequestError):
            self.chat(top_p=2)
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.chat.completions.create(model="other", messages=self.MESSAGES)
        self.assertEqual(missing.exception.code, "model_not_found")

    def test_a_closed_stream_ends_its_request(self):
        with self.chat(stream=True, max_tokens=fixture.LONG, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")


def requests_of(page, code):
    """How many requests the router has answered with `code`."""
    found = re.findall(rf'^runahead_requests_total{{code="{code}",[^\n]*}} (\d+)$', page, re.MULTILINE)
    return sum(map(int, found))


class OverloadTest(fixture.unittest.TestCase):
    """A router that takes one request at a time, and has it."""

    @classmethod
    def setUpClass(cls):
        cls.runahead, make_model = (pathlib.Path(path).resolve() for path in fixture.ARGUMENTS)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model = cls.folder / "model.gguf"
        subprocess.run([make_model, "--context", str(fixture.CONTEXT), model], check=True, timeout=live.PATIENCE)
        workers = []
        for role in ("prefill", "decode"):
            ready = cls.start("worker", f"--role={role}", f"--model={model}", "--threads=1", "--dtype=f32")
            workers += ["--workers", f"role={role},address={ready['address']}"]
        cls.router = cls.start("router", f"--model={model}", *workers, "--queue-size=0", "--max-streams=1")

    @classmethod
    def start(cls, program, *arguments):
        """Starts a process of ours. What it says when it is ready."""
        ready, to_parent = os.pipe()
        name = f"{program}{len(arguments)}{arguments[0].replace('=', '-').replace('/', '-')}"
        command = [cls.runahead.parent / f"runahead-{program}", *arguments, "--listen=127.0.0.1:0",
                   "--metrics-listen=127.0.0.1:0", f"--ready-fd={to_parent}"]
        cls.enterClassContext(live.Process(cls.folder, name, command, pass_fds=[to_parent]))
        os.close(to_parent)
        with open(ready, encoding="utf-8") as file:
            return json.loads(file.readline())

    def smg(self, *arguments):
        return smg_process.Smg(self.folder, {"synthetic": self.router["address"]}, *arguments)

    def refused(self):
        return requests_of(live.fetch(f"http://{self.router['metrics']}/metrics"), "RESOURCE_EXHAUSTED")

    def opened(self, smg, body):
        """The stream that has the router's only place, once what was asked before has left it."""
        def open_it():
            try:
                return smg.open("/v1/completions", body)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 429:
                        raise
                return None
        return live.until(open_it, "the place is free")

    def ask(self, *arguments):
        """Status of one request of a client while the router has another, and how many calls the router refused."""
        with self.smg(*arguments) as smg:
            long = {"prompt": "hello", "max_tokens": fixture.LONG, "ignore_eos": True, "stream": True}
            with self.opened(smg, long) as first:
                first.readline()  # it runs
                before = self.refused()
                status, answer = smg.post("/v1/completions", {"prompt": "hello", "max_tokens": 1})
                return status, answer, self.refused() - before

    def test_without_retries_a_request_is_one_call_and_the_client_gets_429(self):
        status, answer, calls = self.ask("--disable-retries")
        self.assertEqual(status, 429, answer)
        self.assertEqual(calls, 1)

    def test_where_smg_bounds_what_runs_it_says_when_to_come_again(self):
        with self.smg("--disable-retries", "--max-concurrent-requests=1", "--queue-size=0") as smg:
            long = {"prompt": "hello", "max_tokens": fixture.LONG, "ignore_eos": True, "stream": True}
            with self.opened(smg, long) as first:
                first.readline()
                before = self.refused()
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    smg.open("/v1/completions", {"prompt": "hello", "max_tokens": 1})
                with refused.exception as error:
                    self.assertEqual(error.code, 429)
                    self.assertGreater(int(error.headers["Retry-After"]), 0)
                self.assertEqual(self.refused(), before, "the router was not asked")

    def test_with_retries_it_is_several(self):
        status, answer, calls = self.ask("--retry-initial-backoff-ms=1", "--retry-max-backoff-ms=2")
        self.assertEqual(status, 429, answer)
        self.assertIn(calls, range(2, 6))


if __name__ == "__main__":
    if importlib.util.find_spec("smg") is None:
        print("did not run here: SMG in front of the router: it is not installed (tests/front_door/requirements.txt)")
        sys.exit(tools.SKIPPED)
    if openai is None:
        print("did not run here: the openai SDK before SMG: it is not installed (tests/front_door/requirements.txt)")
    fixture.main()
