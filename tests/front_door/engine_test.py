"""The router's engine service (docs/engine.md), called without a gateway: ids of random requests are those of
`runahead generate`.

usage: engine_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import pathlib
import random
import subprocess
import sys
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import http_test  # noqa: E402, beside this file
import live  # noqa: E402

fixture.rerun_with_grpc("the engine service")
import grpc  # noqa: E402
import recording_engine  # noqa: E402, beside this file

# Members of the OpenAI API that the protocol has no field for.
NO_FIELD = ("bad_words",)
SEED = 0x7fffffff  # the largest that the protocol's field takes


class EngineTest(fixture.ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.protocol = recording_engine.Protocol(cls.folder)
        cls.channel = cls.enterClassContext(grpc.insecure_channel(cls.cluster.router))
        (method,) = (one for one in cls.protocol.service.methods if one.name == "Generate")
        cls.generate = cls.channel.unary_stream(
            f"/{cls.protocol.service.full_name}/Generate",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=getattr(cls.protocol, method.output_type.name).FromString)

    def ids_of(self, asked):
        """Of a prompt or a chat, as a gateway makes them."""
        request = urllib.request.Request(self.cluster.http.removesuffix("/v1") + "/tokenize", json.dumps(asked).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=live.PATIENCE) as reply:
            return json.loads(reply.read())["tokens"]

    def answers(self, ids, members, stream):
        """Ids, reason and log probabilities of each answer."""
        params = self.protocol.SamplingParams(**{name: value for name, value in members.items() if name != "logit_bias"})
        for token, value in members.get("logit_bias", {}).items():
            params.logit_bias[int(token)] = value
        request = self.protocol.GenerateRequest(tokenized={"input_ids": ids}, sampling_params=params, stream=stream)
        streamed, answers = {}, {}
        for response in type(self).generate(request, timeout=live.PATIENCE):
            if response.HasField("chunk"):
                of_answer = streamed.setdefault(response.chunk.index, ([], []))
                of_answer[0].extend(response.chunk.token_ids)
                of_answer[1].extend(response.chunk.output_logprobs.token_logprobs)
            else:
                end = response.complete
                answers[end.index] = (list(end.output_ids), end.finish_reason, list(end.output_logprobs.token_logprobs))
        self.assertEqual(bool(streamed), stream)
        for index, (of_stream, logprobs) in streamed.items():
            self.assertEqual(of_stream, answers[index][0])
            answers[index] = (of_stream, answers[index][1], logprobs)
        return [answers[index] for index in sorted(answers)]

    def test_ids_of_random_requests_are_the_routers(self):
        dice = random.Random(36)
        for number in range(http_test.REQUESTS):
            prompt, members = http_test.text_of(dice, dice.randint(1, 80)), http_test.random_members(dice)
            chat = bool(number % 2)
            members = {name: value for name, value in members.items() if name not in NO_FIELD}
            members["seed"] &= SEED
            with self.subTest(number=number, prompt=prompt, members=members):
                command = [self.runahead, "generate", "--router", self.cluster.router, "--json",
                           *(["--message", f"user:{prompt}"] if chat else ["--prompt", prompt]),
                           *http_test.flags_of(members)]
                written = subprocess.run(command, stdout=subprocess.PIPE, timeout=live.PATIENCE, check=True).stdout
                wanted = sorted(map(json.loads, written.splitlines()), key=lambda answer: answer.get("answer", 0))
                ids = self.ids_of({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt})
                self.assertEqual(len(ids), wanted[0]["usage"]["prompt_tokens"])
                self.compare(self.answers(ids, members, stream=bool(number % 3)), wanted)

    def compare(self, answers, wanted):
        self.assertEqual([(ids, reason) for ids, reason, _ in answers],
                         [(one["token_ids"], one["finish_reason"]) for one in wanted])
        for (_, _, logprobs), one in zip(answers, wanted, strict=True):
            of_tokens = [tops[0]["logprob"] for tops in one.get("logprobs", ())]
            self.assertEqual(len(logprobs), len(of_tokens))
            for got, want in zip(logprobs, of_tokens):
                self.assertAlmostEqual(got, want, places=3)


if __name__ == "__main__":
    fixture.main()
