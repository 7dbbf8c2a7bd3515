"""Turns text into token ids, asks with these, and reads log probabilities.

usage: token_ids.py ROUTER TEXT
"""

import sys

import connection

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc


def main(router, text):
    with connection.channel(router) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        prompt_ids = stub.Tokenize(pb.TokenizeRequest(text=text)).ids
        print(f"prompt ids: {list(prompt_ids)}")
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt_ids),
            sampling=pb.SamplingParams(temperature=0, logprobs=2),  # 0 is greedy
            stop=pb.StopConditions(max_tokens=16))
        token_ids = []
        for response in stub.Generate(request):
            for token, likely in zip(response.tokens.ids, response.tokens.logprobs):
                token_ids.append(token)
                shown = ", ".join(f"{one.id} {one.text!r} {one.logprob:.3f}" for one in likely.top)
                print(f"token {token}: {shown}")
    print(f"token ids: {token_ids}")


if __name__ == "__main__":
    main(*sys.argv[1:])
