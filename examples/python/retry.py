"""Asks again where the service has no room now, or its answer broke off: then it goes on behind what came.

usage: retry.py ROUTER PROMPT
"""

import sys
import time

import connection
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
    """All token ids of the answer, each once. Raises grpc.RpcError where it fails for good."""
    again = pb.GenerateRequest()
    again.CopyFrom(request)
    token_ids = []
    while True:
        tries -= 1
        try:
            for response in stub.Generate(again):
                if response.HasField("started"):
                    again.sampling.seed = response.started.seed
                token_ids += response.tokens.ids
            return token_ids
        except grpc.RpcError as error:
            delay = retry_delay(error)
            if delay is None and error.code() == grpc.StatusCode.UNAVAILABLE:
                delay = 1  # nobody answered: the router went away
            if delay is None or tries == 0:
                raise
            again.output_ids[:] = token_ids  # the answer goes on behind them
            print(f"{error.code().name}: {error.details()}; asking again in {delay:g} s", flush=True)
            sleep(delay)


def main(router, prompt):
    request = pb.GenerateRequest(prompt=prompt, stop=pb.StopConditions(max_tokens=16))
    with connection.channel(router) as channel:
        print(f"token ids: {generate(inference_pb2_grpc.InferenceStub(channel), request)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
