// Messages from bytes that came over the network.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace runahead {

// Fills `message` from `bytes`. INVALID_ARGUMENT names the field whose text is no UTF-8, or says that the bytes are no
// such message. Any thread.
absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message);

}  // namespace runahead
