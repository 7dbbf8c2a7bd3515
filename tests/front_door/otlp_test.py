"""What a router sends to a collector, judged by OpenTelemetry's own definitions.

usage: otlp_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import base64
import http.server
import json
import pathlib
import sys
import threading
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402

try:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    from opentelemetry.proto.trace.v1 import trace_pb2
except ImportError:
    json_format = None

TRACE_ID, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
IDS = ("traceId", "spanId", "parentSpanId")


class Collector(http.server.BaseHTTPRequestHandler):
    posts = []  # (path, content type, body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posts.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def with_base64_ids(span):
    """OTLP writes ids in hexadecimal, protobuf's own JSON form in base64."""
    return {key: base64.b64encode(bytes.fromhex(value)).decode() if key in IDS else value for key, value in span.items()}


def read(body):
    """The ExportTraceServiceRequest; raises where a field is not one of its, or of another type."""
    request = json.loads(body)
    for element in request["resourceSpans"]:
        for scope in element["scopeSpans"]:
            scope["spans"] = [with_base64_ids(span) for span in scope["spans"]]
    return json_format.ParseDict(request, trace_service_pb2.ExportTraceServiceRequest())


class OtlpTest(fixture.ClusterTest):
    @classmethod
    def setUpClass(cls):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.MORE = ("--trace", "asked", "--otlp-endpoint", f"http://127.0.0.1:{server.server_port}")
        super().setUpClass()

    def test_the_definitions_of_opentelemetry_read_a_chats_spans(self):
        if json_format is None:
            fixture.skip(self, "opentelemetry-proto is not installed (tests/front_door/requirements.txt)")
        chat = {"model": "model", "messages": [{"role": "user", "content": "zanzibar"}], "max_tokens": 4, "temperature": 0.5}
        request = urllib.request.Request(self.cluster.http + "/chat/completions", json.dumps(chat).encode(),
                                         {"Content-Type": "application/json",
                                          "traceparent": f"00-{TRACE_ID}-{CALLER}-01"})
        with urllib.request.urlopen(request, timeout=live.PATIENCE) as reply:
            self.assertEqual(reply.status, 200)
        live.until(lambda: Collector.posts, "the collector has the trace")
        spans = {}
        for path, content_type, body in Collector.posts:
            self.assertEqual((path, content_type), ("/v1/traces", "application/json"))
            self.assertNotIn(b"zanzibar", body)
            for element in read(body).resource_spans:
                service = {a.key: a.value.string_value for a in element.resource.attributes}["service.name"]
                for span in element.scope_spans[0].spans:
                    self.assertEqual(span.trace_id.hex(), TRACE_ID)
                    self.assertEqual(len(span.span_id), 8)
                    self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)
                    spans[span.span_id] = (service, span)
        roots = [(service, span) for service, span in spans.values() if span.parent_span_id not in spans]
        self.assertEqual(len(roots), 1, "one tree")
        service, root = roots[0]
        self.assertEqual((service, root.name, root.parent_span_id.hex()), ("runahead-router", "chat model", CALLER))
        self.assertEqual(root.kind, trace_pb2.Span.SPAN_KIND_SERVER)
        attributes = {a.key: a.value for a in root.attributes}
        self.assertEqual(attributes["gen_ai.operation.name"].string_value, "chat")
        self.assertEqual(attributes["gen_ai.request.max_tokens"].int_value, 4)
        self.assertEqual(attributes["gen_ai.request.temperature"].double_value, 0.5)
        self.assertEqual(len(attributes["gen_ai.response.finish_reasons"].array_value.values), 1)
        self.assertGreater(attributes["gen_ai.usage.input_tokens"].int_value, 0)
        self.assertEqual({service for service, _ in spans.values()},
                         {"runahead-router", "runahead-prefill", "runahead-decode"})


if __name__ == "__main__":
    fixture.main()
