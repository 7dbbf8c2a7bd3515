"""How the examples reach a router: with the API key that is in the environment as RUNAHEAD_API_KEY, where one is."""

import os

import grpc


class _KeySender(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Has every call of a channel bring a key."""

    def __init__(self, api_key):
        self.api_key = api_key

    def intercept_unary_unary(self, continuation, details, request):
        key = ("authorization", f"Bearer {self.api_key}")
        return continuation(details._replace(metadata=[*(details.metadata or ()), key]), request)

    intercept_unary_stream = intercept_unary_unary


def channel(router):
    """To a router at host:port; to be closed, as by `with`."""
    api_key = os.environ.get("RUNAHEAD_API_KEY")
    plain = grpc.insecure_channel(router)
    return grpc.intercept_channel(plain, _KeySender(api_key)) if api_key else plain
