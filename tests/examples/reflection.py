"""What a server says of itself by gRPC's reflection, which is all that grpcurl knows of it."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# The messages of the protocol, as far as they are used: (message, field, number, type, whether it is a list).
STRING, BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
VERSIONS = ("v1", "v1alpha")
FIELDS = [
    ("Request", "file_containing_symbol", 4, STRING, False),
    ("Request", "list_services", 7, STRING, False),
    ("Response", "file_descriptor_response", 4, "Files", False),
    ("Response", "list_services_response", 6, "Services", False),
    ("Files", "file_descriptor_proto", 1, BYTES, True),
    ("Services", "service", 1, "Service", True),
    ("Service", "name", 1, STRING, False),
]


def message_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # Debian's protobuf


def protocol():
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="reflection", syntax="proto3")
    messages = {}
    for message, name, number, kind, repeated in FIELDS:
        if message not in messages:
            messages[message] = file.message_type.add(name=message)
        field = messages[message].field.add(name=name, number=number, label=3 if repeated else 1)
        if isinstance(kind, str):
            field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".reflection.{kind}"
        else:
            field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_class(pool, "reflection.Request"), message_class(pool, "reflection.Response")


class Reflection:
    """Of the server at the other end of `channel`, by one of VERSIONS, which differ in nothing but the name."""

    def __init__(self, channel, version=VERSIONS[0]):
        self.version = version
        self.request, response = protocol()
        self.call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                          request_serializer=self.request.SerializeToString,
                                          response_deserializer=response.FromString)
        self.pool = descriptor_pool.DescriptorPool()
        self.known = set()

    def ask(self, **question):
        return next(self.call(iter([self.request(**question)])))

    def services(self):
        return [service.name for service in self.ask(list_services="*").list_services_response.service]

    def learn(self, symbol):
        """Puts the file of `symbol` and those that it needs into the pool. LookupError where the server has none."""
        files = self.ask(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto
        if not files:
            raise LookupError(f"reflection does not describe {symbol}")
        parsed = [descriptor_pb2.FileDescriptorProto.FromString(text) for text in files]
        for file in reversed(parsed):  # what is needed comes after what needs it
            if file.name not in self.known:
                self.pool.Add(file) if hasattr(self.pool, "Add") else self.pool.AddSerializedFile(file.SerializeToString())
                self.known.add(file.name)

    def method(self, name):
        """The descriptor of "package.Service/Method"."""
        service, _, method = name.partition("/")
        self.learn(service)
        return self.pool.FindServiceByName(service).methods_by_name[method]

    def message(self, descriptor):
        return message_class(self.pool, descriptor.full_name)()
