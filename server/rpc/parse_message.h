// Messages from bytes that came over the network, and bytes of messages.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace runahead {

// Fills `message` from `bytes`. INVALID_ARGUMENT names the field whose text is no UTF-8, or says that the bytes are no
// such message. Any thread.
absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message);

// RESOURCE_EXHAUSTED where the message has more than so many bytes.
absl::Status CheckLength(const grpc::ByteBuffer& bytes, int64_t longest);

// What a message of `type` with these bytes takes in memory at the most, while it is parsed and afterwards: up to sixty
// times its bytes, where it has many small parts. Quick, and takes no memory itself.
int64_t ParsedBytes(grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type);

// INTERNAL where `message` cannot be serialized.
grpc::Status SerializeMessage(const google::protobuf::Message& message, grpc::ByteBuffer& bytes);

}  // namespace runahead
