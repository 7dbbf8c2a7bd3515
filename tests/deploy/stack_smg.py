"""SMG in the stack of deploy/compose, as the profile smg has it: what a client at its port gets."""

import contextlib
import json
import resource
import selectors
import socket
import time
import urllib.error
import urllib.request

ADDRESS = ("127.0.0.1", 30000)
PATIENCE = 180  # seconds, as in stack_scenario.py
PATH = "/v1/chat/completions"


def chat(question, **more):
    """A request that has one answer, however often it is asked."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ADDRESS[1]}/v1/models", timeout=PATIENCE) as reply:
        (model,) = json.load(reply)["data"]
    return {"model": model["id"], "messages": [{"role": "user", "content": question}], "temperature": 0, **more}


class Refused(Exception):
    """Whoever answers at a published port refused the request."""


def post(port, body):
    """The reply to a chat at a published port, to be closed."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(f"{error.code} {error.read().decode()}") from error


def whole(port, question):
    with post(port, chat(question, max_tokens=8)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def streamed(port, question):
    pieces = []
    with post(port, chat(question, max_tokens=8, stream=True)) as reply:
        lines = [line.removeprefix(b"data: ").strip() for line in reply if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]", lines
    for event in map(json.loads, lines[:-1]):
        pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
    assert sum(piece != "" for piece in pieces) > 1, pieces
    return "".join(pieces)


def ask(question):
    """The answer by SMG, which is our own gateway's, streamed and not."""
    wanted = whole(8000, question)
    for answer in (whole(ADDRESS[1], question), streamed(ADDRESS[1], question)):
        assert answer == wanted, f"SMG answers {answer!r}, the gateway {wanted!r}"
    return wanted


def wait_until_it_answers(question):
    """What `ask` gives, once nothing refuses it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask(question)
        except Refused as refused:
            assert time.monotonic() < deadline, refused
        time.sleep(0.5)


def refusal(clients):
    """Status line and headers of the first reply that is no 200, of streams none of which has ended; None: not yet."""
    for key, _ in clients.select(timeout=0):
        reply = key.fileobj.recv(65536, socket.MSG_PEEK)
        assert b'"error"' not in reply or b" 429 " in reply, reply
        status, *headers = reply.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        if " 200 " not in status:
            return status, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    return None


def overload(limit):
    """One stream more than `limit`, the profile's bound, is refused, with when to come again. How long that is."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    body = json.dumps(chat("Tell me everything.", stream=True, ignore_eos=True)).encode()
    request = (f"POST {PATH} HTTP/1.1\r\nHost: smg\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n").encode() + body
    deadline = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(selectors.DefaultSelector())
        for _ in range(limit + 1):
            client = stack.enter_context(socket.create_connection(ADDRESS, timeout=PATIENCE))
            client.sendall(request)
            clients.register(client, selectors.EVENT_READ)
        while (refused := refusal(clients)) is None:
            assert time.monotonic() < deadline, f"none of {limit + 1} streams is refused"
            time.sleep(0.1)
    status, headers = refused
    assert " 429 " in status, refused
    assert int(headers["retry-after"]) > 0, refused
    return headers["retry-after"]
