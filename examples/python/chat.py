"""Asks with chat messages, which the model's own chat template makes a prompt of.

usage: chat.py ROUTER QUESTION [SYSTEM_MESSAGE]
"""

import sys

import connection

from runahead.v1 import inference_pb2 as pb
from runahead.v1 import inference_pb2_grpc


def main(router, question, system=""):
    messages = [pb.ChatMessage(role="system", content=system)] if system else []
    messages.append(pb.ChatMessage(role="user", content=question))
    request = pb.GenerateRequest(chat=pb.ChatMessages(messages=messages), stop=pb.StopConditions(max_tokens=32))
    answer, token_ids = "", []
    with connection.channel(router) as channel:
        for response in inference_pb2_grpc.InferenceStub(channel).Generate(request):
            # An event that is not there is empty.
            answer += response.tokens.text + response.finished.text
            token_ids += response.tokens.ids
    # To go on: append ChatMessage(role="assistant", content=answer) and the next question, and ask again.
    print(f"answer: {answer!r}")
    print(f"token ids: {token_ids}")


if __name__ == "__main__":
    main(*sys.argv[1:])
