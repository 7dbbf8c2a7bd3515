"""Asks again where the service says that it has no room now, after the time that it names.

usage: retry.py ROUTER PROMPT
"""

import sys
import time

import grpc

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc, status_pb2


def retry_delay(error):
    """Seconds that the service asks to wait before the same request is sent again; None where that is of no use.

    UNAVAILABLE and RESOURCE_EXHAUSTED carry google.rpc.RetryInfo in the trailer grpc-status-details-bin.
    """
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.RpcStatus.FromString(value).details:
                if detail.type_url == "type.googleapis.com/google.rpc.RetryInfo":
                    delay = status_pb2.RetryInfo.FromString(detail.value).retry_delay
                    return delay.seconds + delay.nanos / 1e9
    return None


def generate(stub, request, tries=5, sleep=time.sleep):
    """All token ids of the answer. Raises grpc.RpcError where it fails for good."""
    while True:
        tries -= 1
        token_ids = []  # of a try that broke off nothing is kept
        try:
            for response in stub.Generate(request):
                token_ids += response.tokens.ids
            return token_ids
        except grpc.RpcError as error:
            delay = retry_delay(error)
            if delay is None or tries == 0:
                raise
            print(f"{error.code().name}: {error.details()}; asking again in {delay:g} s", flush=True)
            sleep(delay)


def main(router, prompt):
    request = pb.GenerateRequest(prompt=prompt, stop=pb.StopConditions(max_tokens=16))
    with grpc.insecure_channel(router) as channel:
        print(f"token ids: {generate(inference_pb2_grpc.InferenceStub(channel), request)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
