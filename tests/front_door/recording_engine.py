"""An engine of vLLM's protocol that computes nothing: it gives a gateway its tokenizer, and keeps the ids that come."""

import hashlib
import pathlib
import subprocess
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
CHUNK = 65536  # bytes, as the router sends it
CONTEXT = 1 << 20


class Protocol:
    """The service and its messages, of the repository's proto file: by reflection, for stubs of one protoc do not fit every
    library."""

    def __init__(self, folder):
        out = pathlib.Path(folder, "vllm_engine.binpb")
        subprocess.run(["protoc", f"--proto_path={PROTO}", f"--descriptor_set_out={out}",
                        "vllm/grpc/engine/vllm_engine.proto"], check=True)
        self.pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
            self.pool.Add(file)
        self.service = self.pool.FindServiceByName("vllm.grpc.engine.VllmEngine")

    def __getattr__(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"vllm.grpc.engine.{name}"))


class RecordingEngine:
    """Serves `model` with the folder `archive`, a zip's bytes, until the block ends. `asked` has the ids of each request,
    in the order in which they came."""

    def __init__(self, protocol, model, archive):
        self.protocol, self.model, self.archive, self.asked = protocol, model, archive, []
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {method.name: self.handler(method) for method in protocol.service.methods if hasattr(self, method.name)}
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(protocol.service.full_name, handlers),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(grace=None).wait()

    def handler(self, method):
        made = (grpc.unary_stream_rpc_method_handler if method.server_streaming else
                grpc.unary_unary_rpc_method_handler)
        request = getattr(self.protocol, method.input_type.name)
        return made(getattr(self, method.name), request_deserializer=request.FromString,
                    response_serializer=lambda answer: answer.SerializeToString())

    def HealthCheck(self, _request, _context):
        return self.protocol.HealthCheckResponse(healthy=True)

    def GetModelInfo(self, _request, _context):
        return self.protocol.GetModelInfoResponse(
            is_generation=True, max_context_length=CONTEXT, max_req_input_len=CONTEXT, served_model_name=self.model,
            tokenizer_path=f"/nowhere/{self.model}")

    def GetServerInfo(self, _request, _context):
        return self.protocol.GetServerInfoResponse(server_type="vllm", data_parallel_size=1)

    def GetLoads(self, _request, _context):
        return self.protocol.GetLoadsResponse(dp_rank_count=1)

    def GetTokenizer(self, _request, _context):
        for at in range(0, len(self.archive), CHUNK):
            last = at + CHUNK >= len(self.archive)
            yield self.protocol.GetTokenizerChunk(data=self.archive[at:at + CHUNK],
                                                  sha256=hashlib.sha256(self.archive).hexdigest() if last else "")

    def Generate(self, request, _context):
        ids = list(request.tokenized.input_ids)
        self.asked.append(ids)
        end = self.protocol.GenerateComplete(output_ids=[0], finish_reason="length", prompt_tokens=len(ids),
                                             completion_tokens=1)
        yield self.protocol.GenerateResponse(complete=end)
