"""Prints an answer as it comes, then how it was made.

usage: stream.py ROUTER PROMPT [MAX_TOKENS]
"""

import sys

import connection

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc


def show_plan(started):
    """Which workers computed which part of the prompt, and which one decodes."""
    plan = started.plan
    chain = " -> ".join(f"{worker} ({tokens})" for worker, tokens in zip(plan.workers, plan.parts))
    chain = chain or f"behind {plan.known_tokens} tokens"  # that the decode worker knew: no chain
    print(f"request {started.request_id}: {started.prompt_tokens} prompt tokens")
    print(f"plan {plan.schedule}: {chain}, decoded by {plan.decode_worker or 'nobody'}")


def show_timing(finished):
    """Where the time to the first token went: the stages add up to it."""
    timing = finished.timing
    stages = ", ".join(f"{name} {seconds:.4f}" for name, seconds in sorted(timing.stages.items()))
    print(f"{pb.FinishReason.Name(finished.reason)} after {finished.usage.completion_tokens} tokens")
    print(f"first token after {timing.ttft_s:.4f} s, then {timing.tpot_s:.4f} s a token")
    print(f"stages: {stages}")


def main(router, prompt, max_tokens="32"):
    request = pb.GenerateRequest(prompt=prompt, stop=pb.StopConditions(max_tokens=int(max_tokens)))
    text, token_ids = "", []
    with connection.channel(router) as channel:
        for response in inference_pb2_grpc.InferenceStub(channel).Generate(request):
            event = response.WhichOneof("event")
            if event == "started":
                show_plan(response.started)
            elif event == "tokens":
                token_ids += response.tokens.ids
                text += response.tokens.text
                print(f"tokens: {response.tokens.text!r}", flush=True)
            elif event == "finished":
                text += response.finished.text  # what was held back, and now is certain
                show_timing(response.finished)
    print(f"text: {text!r}")
    print(f"token ids: {token_ids}")


if __name__ == "__main__":
    main(*sys.argv[1:])
