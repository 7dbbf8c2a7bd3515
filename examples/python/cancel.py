"""Ends a request in the middle: its memory on the workers is free at once.

usage: cancel.py ROUTER PROMPT [AFTER_TOKENS] [MAX_TOKENS]
"""

import sys

import connection
import grpc

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc


def main(router, prompt, after="5", max_tokens="1000"):
    stop = pb.StopConditions(max_tokens=int(max_tokens), ignore_eos=True)  # an answer that goes on and on
    token_ids = []
    with connection.channel(router) as channel:
        call = inference_pb2_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(prompt=prompt, stop=stop))
        try:
            for response in call:
                token_ids += response.tokens.ids
                if len(token_ids) >= int(after):
                    call.cancel()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                raise
            print(f"{error.code().name}, as asked for")
    print(f"token ids: {token_ids}")


if __name__ == "__main__":
    main(*sys.argv[1:])
