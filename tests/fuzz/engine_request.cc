// A Generate request of the engine service as its bytes come; after a first byte E an event of the public service,
// whose answer is told.
#include <grpcpp/support/byte_buffer.h>

#include "server/engine/engine_answer.h"
#include "server/engine/generate_mapping.h"
#include "server/rpc/parse_message.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace runahead {
namespace {

// Reads the message as a server does. False: it is none.
bool Read(std::string_view bytes, google::protobuf::Message& message) {
  grpc::Slice slice(bytes.data(), bytes.size());
  grpc::ByteBuffer buffer(&slice, 1);
  const int64_t most = ParsedBytes(buffer, *message.GetDescriptor());
  if (!ParseMessage(buffer, message).ok()) return false;
  RUNAHEAD_CHECK(static_cast<int64_t>(message.SpaceUsedLong()) <= most);
  return true;
}

void CheckRequest(std::string_view bytes) {
  vllm::grpc::engine::GenerateRequest request;
  if (!Read(bytes, request)) return;
  const int64_t ids = request.tokenized().input_ids_size();
  const auto mapped = ToPublicRequest(request);
  if (mapped.ok()) {
    RUNAHEAD_CHECK(mapped->has_prompt() || mapped->token_ids().ids_size() == ids);
    return;
  }
  fuzz::CheckRefusal(mapped.status(), "");
  const auto field = BlamedField(mapped.status());
  RUNAHEAD_CHECK(field.has_value() && !field->empty());
}

void CheckEvent(std::string_view bytes) {
  v1::GenerateResponse event;
  if (!Read(bytes, event)) return;
  v1::GenerateRequest asked;
  asked.mutable_sampling()->set_logprobs(2);
  asked.set_n(2);
  for (const bool stream : {false, true}) {
    EngineAnswer answer(stream, asked);
    for (int i = 0; i < 2; ++i) {
      const auto told = answer.Add(event);
      RUNAHEAD_CHECK(told.ok());  // no input is long enough for an answer that is too long
      if (*told && (*told)->has_chunk()) RUNAHEAD_CHECK(stream);
    }
  }
}

}  // namespace

void Fuzz(std::string_view input) {
  fuzz::QuietProtobuf();
  if (input.empty()) return;
  input[0] == 'E' ? CheckEvent(input.substr(1)) : CheckRequest(input.substr(1));
}

}  // namespace runahead
