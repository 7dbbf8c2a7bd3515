"""litellm against `runahead up`, through its provider for servers that speak the OpenAI API: whole and streamed answers,
calls of tools, answers of a given form, errors. In the second tier, where it is installed: it is large
(requirements-soak.txt).

usage: litellm_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import os
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402
import tools  # noqa: E402

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the list of prices that it has, not one from elsewhere
try:
    import litellm
except ImportError:
    litellm = None

TOOL = {"type": "function", "function": {"name": "weather", "description": "The sky over a place.", "parameters": {
    "type": "object", "properties": {"sky": {"type": "string", "enum": ["clear", "grey"]}}, "required": ["sky"],
    "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {
    "type": "integer", "minimum": 0, "maximum": 99}}, "required": ["city", "people"], "additionalProperties": False}


class LitellmTest(fixture.ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        litellm.telemetry = False
        litellm.suppress_debug_info = True

    def ask(self, **more):
        return litellm.completion(**{
            "model": "openai/synthetic", "api_base": self.cluster.http, "api_key": "none", "max_retries": 0,
            "timeout": live.PATIENCE, "seed": 3, "messages": [{"role": "user", "content": "Who are you?"}], **more})

    def test_a_chat_is_answered(self):
        answer = self.ask(max_tokens=8, n=2, temperature=1, stop=["never said"], user="someone")
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertIn(answer.choices[0].finish_reason, ("length", "stop"))

    def test_a_stream_is_put_together_to_what_comes_whole(self):
        whole = self.ask(max_tokens=12)
        pieces = list(self.ask(max_tokens=12, stream=True, stream_options={"include_usage": True}))
        self.assertGreater(len(pieces), 2)
        built = litellm.stream_chunk_builder(pieces)
        self.assertEqual(built.choices[0].message.content, whole.choices[0].message.content)
        self.assertEqual(built.choices[0].finish_reason, whole.choices[0].finish_reason)
        self.assertEqual(built.usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(built.usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_a_text_is_continued(self):
        answer = litellm.text_completion(model="text-completion-openai/synthetic", prompt="Once upon", max_tokens=4,
                                         api_base=self.cluster.http, api_key="none", timeout=live.PATIENCE)
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 4)

    def test_tools_are_called_and_their_results_go_back(self):
        asked = [{"role": "user", "content": "Rain?"}]
        for stream in (False, True):
            answer = self.ask(messages=asked, tools=[TOOL], tool_choice="required", stream=stream)
            answer = litellm.stream_chunk_builder(list(answer)) if stream else answer
            said = answer.choices[0]
            self.assertEqual(said.finish_reason, "tool_calls")
            (call,) = said.message.tool_calls
            self.assertEqual((call.type, call.function.name), ("function", "weather"))
            self.assertIn(json.loads(call.function.arguments)["sky"], ("clear", "grey"))
        result = {"role": "tool", "tool_call_id": call.id, "content": "none"}
        follow_up = self.ask(messages=[*asked, said.message, result], tools=[TOOL], tool_choice="none", max_tokens=4)
        self.assertEqual(follow_up.usage.completion_tokens, 4)

    def test_an_answer_has_the_form_that_is_asked_for(self):
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
        value = json.loads(self.ask(response_format=form, max_tokens=200).choices[0].message.content)
        self.assertIn(value["city"], ("Paris", "Rome"))
        self.assertIn(value["people"], range(100))
        with self.subTest("members that are vLLM's"):
            answer = self.ask(max_tokens=60, extra_body={"structured_outputs": {"choice": ["red", "blue"]}, "top_k": 5})
            self.assertIn(answer.choices[0].message.content, ("red", "blue"))

    def test_log_probabilities_come(self):
        answer = self.ask(max_tokens=3, logprobs=True, top_logprobs=2, temperature=0)
        self.assertEqual(len(answer.choices[0].logprobs.content), 3)

    def test_errors_are_litellms(self):
        with self.assertRaises(litellm.BadRequestError) as wrong:
            self.ask(top_p=2)
        self.assertIn("top_p", str(wrong.exception))
        with self.assertRaises(litellm.NotFoundError) as missing:
            self.ask(model="openai/other")
        self.assertIn("other", str(missing.exception))
        with self.assertRaises(litellm.ContextWindowExceededError):
            self.ask(messages=[{"role": "user", "content": "word " * fixture.CONTEXT * 2}])


def go_on_in_its_own_python():
    """That of the virtual environment whose litellm is in the path. Ends the test as not run where there is none."""
    program = shutil.which("litellm")
    python = program and pathlib.Path(program).parent / "python"
    if not python or python == pathlib.Path(sys.executable) or not python.exists():
        print("did not run here: litellm against the gateway: it is not installed (tests/front_door/requirements-soak.txt)")
        sys.exit(tools.SKIPPED)
    os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    if litellm is None:
        go_on_in_its_own_python()
    fixture.main()
