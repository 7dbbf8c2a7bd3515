// A message of the public service as its bytes come; the first byte says of which method.
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "server/router/answer_limits.h"
#include "server/router/chat_input.h"
#include "server/router/validation.h"
#include "server/rpc/parse_message.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/fuzz/small_tokenizer.h"

namespace runahead {
namespace {

const ModelInfo kModel{"tiny", "0123456789abcdef", 1000, 320, "Tiny-v2.Q4_1"};
constexpr size_t kTelling = 12;  // bytes of a caller's text that stand in no message by chance

const ChatTemplate& SmallTemplate() {
  static const ChatTemplate& made =
      *new ChatTemplate(*ChatTemplate::Parse(SyntheticChatTemplate(), "<|im_start|>", "<|im_end|>"));
  return made;
}

// A refusal blames a field, for people and for programs.
void CheckBlame(const absl::Status& status) {
  fuzz::CheckRefusal(status, "");
  const auto field = BlamedField(status);
  RUNAHEAD_CHECK(field.has_value() && !field->empty());
  fuzz::CheckRefusal(status, absl::StrCat(*field, ": "));
  RUNAHEAD_CHECK(BlamedField(FromGrpcStatus(ToGrpcStatus(status))) == field);
}

// Messages are logged: they show nothing of prompts and chats.
void CheckHides(const absl::Status& status, const std::string& text) {
  RUNAHEAD_CHECK(text.size() < kTelling || status.message().find(text) == absl::string_view::npos);
}

void CheckHides(const absl::Status& status, const v1::ChatMessages& chat) {
  for (const v1::ChatMessage& message : chat.messages()) {
    CheckHides(status, message.content());
    CheckHides(status, message.tool_calls());
  }
  CheckHides(status, chat.tools());
  CheckHides(status, chat.template_variables());
}

absl::Status Encode(const v1::ChatMessages& chat) {
  return EncodeChat(SmallTemplate(), *fuzz::SmallTokenizer(), chat, absl::UnixEpoch(), Always).status();
}

absl::Status Check(const v1::GenerateRequest& request) {
  RUNAHEAD_RETURN_IF_ERROR(CheckInputSize(request, *fuzz::SmallTokenizer(), kModel));
  RUNAHEAD_RETURN_IF_ERROR(ValidateRequest(request, kModel, /*experiments=*/true));
  RUNAHEAD_CHECK(TextBytes(request) <= kMaxPromptBytes && ChatJsonBytes(request.chat()) <= kMaxChatJsonBytes);
  if (request.has_chat()) RUNAHEAD_RETURN_IF_ERROR(Encode(request.chat()));
  RUNAHEAD_RETURN_IF_ERROR(CheckTokens("prompt", request.token_ids().ids(), kModel));
  RUNAHEAD_ASSIGN_OR_RETURN(const int32_t output, ResolveMaxTokens(request, 10, kModel));
  RUNAHEAD_CHECK(output >= 1 && output <= kModel.context_length - 10);
  return CheckChain(ResolveChain(request, 10, Schedule::kKvr), 4);
}

absl::Status Check(const v1::TokenizeRequest& request) {
  RUNAHEAD_RETURN_IF_ERROR(CheckInputSize(request, kModel));
  RUNAHEAD_RETURN_IF_ERROR(ValidateTokenize(request, kModel));
  return request.has_chat() ? Encode(request.chat()) : absl::OkStatus();
}

absl::Status Check(const v1::DetokenizeRequest& request) {
  return ValidateDetokenize(request, kModel);
}

// Reads the message as a server does, before and after it is parsed. False: it is none.
bool Read(std::string_view bytes, google::protobuf::Message& message) {
  grpc::Slice slice(bytes.data(), bytes.size());
  grpc::ByteBuffer buffer(&slice, 1);
  const int64_t most = ParsedBytes(buffer, *message.GetDescriptor());
  if (const absl::Status parsed = ParseMessage(buffer, message); !parsed.ok()) {
    fuzz::CheckRefusal(parsed, "");
    return false;
  }
  RUNAHEAD_CHECK(static_cast<int64_t>(message.SpaceUsedLong()) <= most);
  return true;
}

void CheckGenerate(std::string_view bytes) {
  v1::GenerateRequest request;
  if (!Read(bytes, request)) return;
  if (const absl::Status status = Check(request); !status.ok()) {
    CheckBlame(status);
    CheckHides(status, request.prompt());
    CheckHides(status, request.chat());
  }
}

void CheckTokenize(std::string_view bytes) {
  v1::TokenizeRequest request;
  if (!Read(bytes, request)) return;
  if (const absl::Status status = Check(request); !status.ok()) {
    CheckBlame(status);
    CheckHides(status, request.text());
    CheckHides(status, request.chat());
  }
}

void CheckDetokenize(std::string_view bytes) {
  v1::DetokenizeRequest request;
  if (!Read(bytes, request)) return;
  if (const absl::Status status = Check(request); !status.ok()) CheckBlame(status);
}

void CheckTrace(std::string_view bytes) {
  v1::Trace trace;
  if (!Read(bytes, trace)) return;
  FitAnswer(trace);
  RUNAHEAD_CHECK(trace.ByteSizeLong() <= kMaxAnswerBytes);
}

}  // namespace

void Fuzz(std::string_view input) {
  fuzz::QuietProtobuf();
  if (input.empty()) return;
  const std::string_view bytes = input.substr(1);
  switch (input[0]) {
    case 'T':
      return CheckTokenize(bytes);
    case 'D':
      return CheckDetokenize(bytes);
    case 'R':
      return CheckTrace(bytes);
    default:
      return CheckGenerate(bytes);
  }
}

}  // namespace runahead
