"""The OpenAI API of `runahead up`, as docs/http.md has it: by curl and the standard library, and by the openai SDK.

usage: http_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import typing
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402

try:
    import openai
    import pydantic
except ImportError:
    openai = None

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/http.md"
PAGE_ADDRESS = "127.0.0.1:8000"
REQUESTS = 200  # of random members, whose answers are compared
WORDS = "the chain hands keys and values on layer by layer while it computes é ü 漢字 \U0001f600 {} \" \\ \n <s>".split(" ")


# Members of a request whose names the command has too, with dashes.
FLAGS = ("seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
         "max_tokens", "min_tokens", "n", "logprobs")
LISTS = {"stop": "stop", "bad_words": "bad-word", "stop_token_ids": "stop-id"}


def text_of(dice, words):
    return " ".join(dice.choice(WORDS) for _ in range(words))


def random_members(dice):
    """What a request may say of how its answers are drawn and where they end: each now and then."""
    members = {"seed": dice.getrandbits(63), "temperature": dice.choice((0, 0.7, 1, 1.6)), "top_p": dice.choice((1, 0.9)),
               "max_tokens": dice.randint(1, 16)}
    for name, value in (("top_k", dice.randint(0, 50)), ("min_p", dice.choice((0, 0.02, 0.2))),
                        ("repetition_penalty", dice.choice((0.8, 1, 1.3))), ("presence_penalty", dice.choice((-1, 0.5, 2))),
                        ("frequency_penalty", dice.choice((-0.5, 1, 2))), ("n", dice.randint(1, 3)),
                        ("min_tokens", dice.randint(0, members["max_tokens"])),
                        ("logit_bias", {str(dice.randint(3, 90)): dice.choice((-100, -3, 4, 12)) for _ in range(3)}),
                        ("stop", dice.sample(["e", "t", "an", " ", "\u6f22", "1"], dice.randint(1, 3))),
                        ("bad_words", dice.sample(["a", "the", " of", "0"], 2)),
                        ("stop_token_ids", [dice.randint(3, 90) for _ in range(4)]), ("ignore_eos", True),
                        ("logprobs", dice.randint(0, 5))):
        if dice.random() < 0.3:
            members[name] = value
    return members


def flags_of(members):
    """The flags of `runahead generate` for the same."""
    flags = [f"--{name.replace('_', '-')}={members[name]}" for name in FLAGS if name in members]
    flags += [f"--{flag}={value}" for name, flag in LISTS.items() for value in members.get(name, ())]
    flags += [f"--logit-bias={token}={value}" for token, value in members.get("logit_bias", {}).items()]
    return flags + ["--ignore-eos"] * members.get("ignore_eos", False)


def joined(events, chat):
    """Text, reason and log probabilities of the tokens of each choice of a stream."""
    choices = {}
    for piece in (event["choices"][0] for event in events if event["choices"]):
        choice = choices.setdefault(piece["index"], {"text": "", "finish_reason": None, "logprobs": []})
        choice["text"] += (piece["delta"].get("content") or "") if chat else piece["text"]
        choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
        choice["logprobs"] += token_logprobs(piece, chat)
    return [choices[index] for index in sorted(choices)]


def token_logprobs(choice, chat):
    if not choice["logprobs"]:
        return []
    if chat:
        return [token["logprob"] for token in choice["logprobs"]["content"]]
    return choice["logprobs"]["token_logprobs"]


if openai is not None:
    class Place(pydantic.BaseModel):
        sky: typing.Literal["clear", "grey"]
        people: int = pydantic.Field(ge=0, le=99)


class DoorTest(fixture.ClusterTest):
    def post(self, path, body, headers=None):
        """Status and body of the answer."""
        request = urllib.request.Request(self.cluster.http.removesuffix("/v1") + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=live.PATIENCE) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def streamed(self, path, body):
        status, text = self.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(status, 200, text)
        events = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        return [json.loads(event) for event in events[:-1]]


class HttpTest(DoorTest):
    def generated(self, *prompt, **members):
        """The answers of the gRPC service to one prompt."""
        command = [self.runahead, "generate", "--router", self.cluster.router, "--json", *prompt, *flags_of(members)]
        written = subprocess.run(command, stdout=subprocess.PIPE, timeout=live.PATIENCE, check=True).stdout
        return sorted(map(json.loads, written.splitlines()), key=lambda answer: answer.get("answer", 0))

    def test_the_pages_first_command_is_answered(self):
        if shutil.which("curl") is None:
            fixture.skip(self, "the page's command: no curl")
        command = re.search(r"^(curl .*?)\n```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
        command = command.replace("curl ", "curl -sS --fail-with-body ", 1)
        command = command.replace(f"http://{PAGE_ADDRESS}/v1", self.cluster.http).replace("}]}", '}], "max_tokens": 8}')
        answer = json.loads(self.shell(command))
        self.assertEqual(answer["choices"][0]["message"]["role"], "assistant")
        self.assertIn(answer["usage"]["completion_tokens"], range(1, 9))

    def test_the_health_command_asks_the_gateway(self):
        address = self.cluster.http.removeprefix("http://").removesuffix("/v1")
        for gateway, code in ((address, 0), ("127.0.0.1:1", 1)):
            run = subprocess.run([self.runahead, "health", "--gateway", gateway], capture_output=True, text=True,
                                 timeout=live.PATIENCE, check=False)
            self.assertEqual(run.returncode, code, run.stderr)

    def test_both_doors_give_the_same_answers(self):
        dice = random.Random(36)
        for number in range(REQUESTS):
            prompt, members, chat = text_of(dice, dice.randint(1, 80)), random_members(dice), bool(number % 2)
            path = "/v1/chat/completions" if chat else "/v1/completions"
            body = {**members, **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt})}
            if chat and "logprobs" in members:
                body |= {"logprobs": True, "top_logprobs": members["logprobs"]}
            with self.subTest(number=number, body=body):
                wanted = self.generated(*(["--message", f"user:{prompt}"] if chat else ["--prompt", prompt]), **members)
                status, text = self.post(path, body)
                self.assertEqual(status, 200, text)
                answer = json.loads(text)
                whole = [{"text": choice["message"]["content"] if chat else choice["text"],
                          "finish_reason": choice["finish_reason"], "logprobs": token_logprobs(choice, chat)}
                         for choice in answer["choices"]]
                events = self.streamed(path, body)
                self.compare(whole, wanted)
                self.compare(joined(events, chat), wanted)
                for usage in (answer["usage"], events[-1]["usage"]):
                    self.assertEqual(usage["prompt_tokens"], wanted[0]["usage"]["prompt_tokens"])
                    self.assertEqual(usage["completion_tokens"], sum(one["usage"]["completion_tokens"] for one in wanted))

    def compare(self, choices, wanted):
        self.assertEqual([(one["text"], one["finish_reason"]) for one in choices],
                         [(one["text"], one["finish_reason"]) for one in wanted])
        for choice, one in zip(choices, wanted, strict=True):
            of_tokens = [tops[0]["logprob"] for tops in one["logprobs"]]
            self.assertEqual(len(choice["logprobs"]), len(of_tokens))
            for got, want in zip(choice["logprobs"], of_tokens):
                self.assertAlmostEqual(got, want, places=3)

    def test_tools_are_called_by_a_model_whose_template_knows_none(self):
        tool = {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"sky": {"enum": ["clear", "grey"]}}, "required": ["sky"],
            "additionalProperties": False}}}
        asked = {"messages": [{"role": "user", "content": "Rain?"}], "tools": [tool], "tool_choice": "required"}
        status, text = self.post("/v1/chat/completions", asked)
        self.assertEqual(status, 200, text)
        said = json.loads(text)["choices"][0]
        self.assertEqual(said["finish_reason"], "tool_calls")
        (call,) = said["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "weather")
        self.assertIn(json.loads(call["function"]["arguments"])["sky"], ("clear", "grey"))
        result = {"role": "tool", "tool_call_id": call["id"], "content": "none"}
        follow_up = {"messages": [*asked["messages"], said["message"], result], "tools": [tool], "max_tokens": 4}
        status, text = self.post("/v1/chat/completions", follow_up)
        self.assertEqual(status, 200, text)
        status, rendered = self.post("/tokenize", {k: v for k, v in follow_up.items() if k != "max_tokens"})
        self.assertEqual(status, 200, rendered)
        _, rendered = self.post("/detokenize", {"tokens": json.loads(rendered)["tokens"]})
        for words in ('"name": "weather"', "<tool_call>", "<tool_response>\nnone\n</tool_response>"):
            self.assertIn(words, json.loads(rendered)["prompt"])

    def test_ids_go_there_and_back(self):
        prompt = text_of(random.Random(7), 40)
        _, text = self.post("/tokenize", {"prompt": prompt, "add_special_tokens": False})
        _, back = self.post("/detokenize", {"tokens": json.loads(text)["tokens"]})
        self.assertEqual(json.loads(back)["prompt"], prompt)
        status, answer = self.post("/v1/completions", {"prompt": json.loads(text)["tokens"], "max_tokens": 3})
        self.assertEqual(status, 200, answer)
        self.assertEqual(json.loads(answer)["usage"]["prompt_tokens"], json.loads(text)["count"])

    def test_a_prompt_is_scored_as_its_tokens_were_drawn(self):
        prompt = text_of(random.Random(8), 30)
        (drawn,) = self.generated("--prompt", prompt, temperature=0, max_tokens=8, logprobs=0)
        _, text = self.post("/tokenize", {"prompt": prompt})
        ids = json.loads(text)["tokens"] + drawn["token_ids"]
        body = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
        status, text = self.post("/v1/completions", body)
        self.assertEqual(status, 200, text)
        scored = json.loads(text)["choices"][0]
        self.assertEqual(len(scored["logprobs"]["token_logprobs"]), len(ids))
        self.assertGreater(len(drawn["token_ids"]), 1)
        of_drawn = scored["logprobs"]["token_logprobs"][-len(drawn["token_ids"]):]
        for one, other in zip(of_drawn, drawn["logprobs"], strict=True):
            self.assertAlmostEqual(one, other[0]["logprob"], delta=0.1)  # prefill's arithmetic, and decode's
        pieces = [event["choices"][0] for event in self.streamed("/v1/completions", body) if event["choices"]]
        self.assertEqual("".join(piece["text"] for piece in pieces), scored["text"])
        tokens = [token for piece in pieces if piece["logprobs"] for token in piece["logprobs"]["tokens"]]
        self.assertEqual(tokens, scored["logprobs"]["tokens"])

    def test_both_doors_score_a_prompt_alike(self):
        prompt = text_of(random.Random(9), 30)
        for chat in (False, True):
            (wanted,) = self.generated(*(["--message", f"user:{prompt}"] if chat else ["--prompt", prompt]),
                                       "--prompt-logprobs=2", temperature=0, max_tokens=1)
            asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
            for most in (0, 1):
                status, text = self.post("/v1/chat/completions" if chat else "/v1/completions",
                                         {**asked, "prompt_logprobs": 2, "max_tokens": most})
                self.assertEqual(status, 200, text)
                answer = json.loads(text)
                first, *scored = (answer if chat else answer["choices"][0])["prompt_logprobs"]
                self.assertIsNone(first)
                self.assertEqual(1 + len(scored), answer["usage"]["prompt_tokens"])
                for by_id, tops in zip(scored, wanted["prompt_logprobs"][1:], strict=True):
                    self.compare_place(by_id, tops)

    def compare_place(self, by_id, tops):
        """`tops` has the prompt's own token first, then the likeliest two of the others."""
        ranked = sorted(tops, key=lambda token: -token["logprob"])
        self.assertEqual(list(by_id)[0], str(tops[0]["id"]))
        self.assertEqual(set(by_id), {str(token["id"]) for token in (tops[0], *ranked[:2])})
        for token in tops:
            if (got := by_id.get(str(token["id"]))) is not None:
                self.assertAlmostEqual(got["logprob"], token["logprob"], places=3)
                self.assertEqual(got["decoded_token"], token["text"])
                self.assertIn(got["rank"], (ranked.index(token) + 1, None))

    def test_the_bench_command_loads_both_doors(self):
        load = ["--prompts", "12", "--input-tokens", "20-40", "--output-tokens", "6", "--concurrency", "4", "--seed", "1",
                "--warmup", "0", "--fail-on-error", "--json"]
        for door in (["--router", self.cluster.router], ["--url", self.cluster.http],
                     ["--url", self.cluster.http, "--chat"]):
            run = subprocess.run([self.runahead, "bench", *door, *load], capture_output=True, text=True,
                                 timeout=live.PATIENCE, check=False)
            with self.subTest(door=door):
                self.assertEqual(run.returncode, 0, run.stderr)
                report = json.loads(run.stdout)
                self.assertEqual((report["completed"], report["failed"]), (12, 0))
                self.assertEqual(report["total_output_tokens"], 72)
                self.assertEqual(report["output_lens"], [6] * 12)
                self.assertTrue(all(0 < ttft <= e2el for ttft, e2el in zip(report["ttfts"], report["e2els"], strict=True)))

    def test_what_no_client_should_send_is_refused_and_the_door_goes_on(self):
        for body in ([], "text", {"messages": "hi"}, {"messages": [{}]}, {"messages": [{"role": "user", "content": 5}]},
                     {"messages": [{"role": "user", "content": "hi"}], "max_tokens": "many"},
                     {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search"}]},
                     {"messages": [{"role": "user", "content": "hi"}], "temperature": 1e300},
                     {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}):
            with self.subTest(body=body):
                status, text = self.post("/v1/chat/completions", body)
                self.assertEqual(status, 400, text)
                self.assertTrue(json.loads(text)["error"]["message"])
        self.assertEqual(self.post("/v1/completions", {"prompt": "go on", "max_tokens": 1})[0], 200)


class ToolFormTest(DoorTest):
    """A model whose template writes calls as no other, a list of JSON behind a word, and takes ids as Mistral's does."""

    TEMPLATE = ("{{ tools|tojson if tools }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}"
                "Call: [{{ c.function|tojson if c.id|length == 9 else raise_exception('id') }}]{% endfor %}{{ m.content }}"
                "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}").encode()
    TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"sky": {"enum": ["clear", "grey"]}}, "required": ["sky"],
        "additionalProperties": False}}}

    @classmethod
    def prepare(cls):
        file = cls.model.read_bytes()
        begin = file.index(b"{% for message in messages %}")
        end = file.index(b"{% if add_generation_prompt %}", begin)
        end = file.index(b"{% endif %}", end) + len(b"{% endif %}")
        room = end - begin - len(cls.TEMPLATE) - len(b"{##}")  # the file says how long the template is
        assert room >= 0, room
        cls.model.write_bytes(file[:begin] + cls.TEMPLATE + b"{#" + b" " * room + b"#}" + file[end:])

    def forced(self, tool):
        """The only call of an answer to the first question."""
        asked = {"messages": [{"role": "user", "content": "Rain?"}], "tools": [tool], "tool_choice": "required",
                 "max_tokens": 200}
        status, text = self.post("/v1/chat/completions", asked)
        self.assertEqual(status, 200, text)
        (call,) = json.loads(text)["choices"][0]["message"]["tool_calls"]
        return call

    def test_a_call_and_its_result_go_back(self):
        call = self.forced(self.TOOL)
        for sent, wanted in ((call["id"], 200), ("call_" + call["id"], 400)):
            messages = [{"role": "user", "content": "Rain?"}, {"role": "assistant", "tool_calls": [{**call, "id": sent}]},
                        {"role": "tool", "tool_call_id": sent, "content": "none"}]
            status, text = self.post("/v1/chat/completions", {"messages": messages, "tools": [self.TOOL], "max_tokens": 4})
            self.assertEqual(status, wanted, text)

    def test_forced_arguments_are_an_object_whatever_the_parameters_say(self):
        place = {"type": "object", "properties": {"sky": {"const": "clear"}}, "required": ["sky"]}
        for parameters in ({"anyOf": [{"type": "string"}, place]}, {"$ref": "#/$defs/p", "$defs": {"p": place}},
                           {**place, "type": ["null", "object"]}, {"enum": [1, {"sky": "clear"}]}):
            with self.subTest(parameters=parameters):
                call = self.forced({"type": "function", "function": {"name": "weather", "parameters": parameters}})
                self.assertEqual(call["function"]["name"], "weather")
                self.assertEqual(json.loads(call["function"]["arguments"]), {"sky": "clear"})

    def test_parameters_that_no_arguments_can_be_of_are_refused_by_their_place(self):
        for parameters in ({"type": "array"}, {"type": ["object", "bogus"]}, {"type": 5}, {"type": "Object"},
                           {"type": "object", "$defs": {"a/b": {}}}):
            with self.subTest(parameters=parameters):
                status, text = self.post("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "Rain?"}], "tool_choice": "required",
                    "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]})
                self.assertEqual(status, 400, text)
                self.assertEqual(json.loads(text)["error"]["param"], "tools[0].function.parameters")

    def test_a_call_that_a_stop_string_cuts_off_says_stop(self):
        status, text = self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Rain?"}], "tools": [self.TOOL], "tool_choice": "required",
            "stop": ["}"]})
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["choices"][0]["finish_reason"], "stop")

    def test_a_forced_call_is_written_as_the_template_writes_one(self):
        asked = {"messages": [{"role": "user", "content": "Rain?"}], "tools": [self.TOOL], "tool_choice": "required",
                 "seed": 5, "logprobs": True}
        status, text = self.post("/v1/chat/completions", asked)
        self.assertEqual(status, 200, text)
        said = json.loads(text)["choices"][0]
        self.assertEqual(said["finish_reason"], "tool_calls")
        (call,) = said["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "weather")
        self.assertIn(json.loads(call["function"]["arguments"])["sky"], ("clear", "grey"))
        written = "".join(token["token"] for token in said["logprobs"]["content"])
        self.assertTrue(written.startswith("Call: [{"), written)
        deltas = [event["choices"][0]["delta"] for event in self.streamed("/v1/chat/completions", asked) if event["choices"]]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        self.assertEqual({piece["index"] for piece in pieces}, {0})
        self.assertEqual([piece["function"]["name"] for piece in pieces if "id" in piece], ["weather"])
        self.assertEqual("".join(piece["function"]["arguments"] for piece in pieces), call["function"]["arguments"])


@fixture.unittest.skipIf(openai is None, "no openai SDK")
class SdkTest(fixture.ClusterTest):
    MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who are you?"}]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.cluster.http, api_key="none", max_retries=0, timeout=live.PATIENCE)
        cls.client = cls.enterClassContext(cls.client)

    def chat(self, **more):
        return self.client.chat.completions.create(
            model="", **{"messages": self.MESSAGES, "max_tokens": 12, "seed": 3, **more})

    def test_the_example_is_answered(self):
        example = pathlib.Path(__file__).resolve().parents[2] / "examples/python/openai_chat.py"
        code = example.read_text()
        self.assertIn(f"http://{PAGE_ADDRESS}/v1", code)
        run = subprocess.run([sys.executable, "-c", code.replace(f"http://{PAGE_ADDRESS}/v1", self.cluster.http)],
                             capture_output=True, text=True, timeout=live.PATIENCE, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.endswith("\n"))  # whatever a model of noise says
        self.assertNotEqual(run.stdout, "None\n")

    def test_lists_the_model(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], ["synthetic"])
        self.assertEqual(self.client.models.retrieve("synthetic").id, "synthetic")

    def test_streams_what_it_gives_at_once(self):
        whole = self.chat()
        self.assertEqual(whole.usage.completion_tokens, 12)
        events = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(events[-1].usage.total_tokens, whole.usage.total_tokens)

    def test_log_probabilities_are_those_of_the_tokens(self):
        answer = self.chat(logprobs=True, top_logprobs=3, temperature=0)
        tokens = answer.choices[0].logprobs.content
        self.assertEqual(len(tokens), 12)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.logprob, token.top_logprobs[0].logprob)  # greedy
        self.assertIn(bytes(tokens[0].bytes).decode(errors="replace")[:1], answer.choices[0].message.content)

    def test_several_choices_differ_and_come_again(self):
        first = [choice.message.content for choice in self.chat(n=3, temperature=1).choices]
        self.assertEqual(len(set(first)), 3)
        self.assertEqual([choice.message.content for choice in self.chat(n=3, temperature=1).choices], first)
        self.assertEqual(self.chat(temperature=1).choices[0].message.content, first[0])

    def test_completions_echo_their_prompts(self):
        answer = self.client.completions.create(model="synthetic", prompt=["one", "two"], max_tokens=4, echo=True)
        self.assertEqual([choice.text[:3] for choice in answer.choices], ["one", "two"])

    def test_a_prompt_is_scored_as_tools_ask_for_it(self):
        for prompt, most in (("Once upon a time", 0), ([5, 6, 7, 8], 0), ([5, 6, 7, 8], 1)):
            scored = self.client.completions.create(model="", prompt=prompt, echo=True, max_tokens=most, temperature=0,
                                                    logprobs=2)
            logprobs = scored.choices[0].logprobs
            self.assertEqual(scored.usage.completion_tokens, most)
            for each in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset):
                self.assertEqual(len(each), scored.usage.prompt_tokens + most)
            self.assertIsNone(logprobs.token_logprobs[0])
            self.assertIsNone(logprobs.top_logprobs[0])
            self.assertTrue(all(logprob <= 0 for logprob in logprobs.token_logprobs[1:]))
            self.assertTrue(all(2 <= len(top) <= 3 for top in logprobs.top_logprobs[1:]))
        texts = [choice.text for choice in self.client.completions.create(
            model="", prompt=["Once upon", "a time"], echo=True, max_tokens=0, logprobs=0).choices]
        self.assertEqual(texts, ["Once upon", "a time"])

    def test_errors_are_the_sdks(self):
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.chat(top_p=2)
        self.assertEqual(wrong.exception.param, "top_p")
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.chat.completions.create(model="other", messages=self.MESSAGES)
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as unsupported:
            self.chat(response_format={"type": "xml"})
        self.assertEqual(unsupported.exception.param, "response_format.type")

    def test_an_answer_is_parsed_as_the_class_that_it_was_asked_as(self):
        answer = self.client.chat.completions.parse(model="", messages=self.MESSAGES, response_format=Place, seed=3,
                                                    max_tokens=200)
        self.assertIn(answer.choices[0].message.parsed.sky, ("clear", "grey"))
        with self.client.chat.completions.stream(model="", messages=self.MESSAGES, response_format=Place, seed=3,
                                                 max_tokens=200) as stream:
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, answer.choices[0].message.parsed)

    def test_calls_of_tools_are_put_together_of_a_stream(self):
        tool = openai.pydantic_function_tool(Place, name="place")
        asked = {"model": "", "messages": self.MESSAGES, "tools": [tool], "tool_choice": "required", "seed": 3}
        with self.client.chat.completions.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            (call,) = stream.get_final_completion().choices[0].message.tool_calls
        self.assertIn("tool_calls.function.arguments.done", kinds)
        self.assertIn(call.function.parsed_arguments.sky, ("clear", "grey"))
        (whole,) = self.client.chat.completions.parse(**asked).choices[0].message.tool_calls
        self.assertEqual(whole.function.parsed_arguments, call.function.parsed_arguments)

    def test_what_is_not_served_says_what_is(self):
        for call, words in ((lambda: self.client.responses.create(model="", input="hi"), "/v1/chat/completions"),
                            (lambda: self.client.embeddings.create(model="", input="hi"), "embeddings are not served")):
            with self.assertRaises(openai.NotFoundError) as missing:
                call()
            self.assertIn(words, str(missing.exception))
            self.assertEqual(missing.exception.code, "not_found")

    def test_a_deadline_of_the_request_is_the_servers_error(self):
        with self.assertRaises(openai.APIStatusError) as late:
            self.chat(max_tokens=fixture.LONG, extra_body={"timeout": 0.2, "ignore_eos": True})
        self.assertEqual(late.exception.status_code, 504)

    def test_a_closed_stream_ends_its_request(self):
        with self.chat(stream=True, max_tokens=fixture.LONG) as stream:
            next(iter(stream))
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")


if __name__ == "__main__":
    if openai is None:
        print("did not run here: the openai SDK's tests: it is not installed (tests/front_door/requirements.txt)")
    fixture.main()
