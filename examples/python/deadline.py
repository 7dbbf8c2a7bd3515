"""Gives a request so many seconds: what came by then is kept.

usage: deadline.py ROUTER PROMPT [SECONDS] [MAX_TOKENS]
"""

import sys

import connection
import grpc

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc


def main(router, prompt, seconds="1", max_tokens="1000"):
    stop = pb.StopConditions(max_tokens=int(max_tokens), ignore_eos=True)
    token_ids = []
    with connection.channel(router) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        try:
            # Of the whole call, from here to the last token; the router and the workers stop then, too.
            for response in stub.Generate(pb.GenerateRequest(prompt=prompt, stop=stop), timeout=float(seconds)):
                token_ids += response.tokens.ids
            print("all of it came in time")
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            print(f"{error.code().name} after {len(token_ids)} tokens")
    print(f"token ids: {token_ids}")


if __name__ == "__main__":
    main(*sys.argv[1:])
