// What the router makes of chats that come to our own HTTP door, for smg_tokenizer_test.py: the body of one request a
// line in, one object a line out, {"ids": ..} or {"refused": why}. usage:
//
//   encode_chats MODEL.gguf NOW < BODIES > IDS     NOW: what templates take for the time, in seconds of Unix
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/calls.h"
#include "server/router/chat_input.h"
#include "server/tokenizer/chat_template.h"
#include "server/tokenizer/tokenizer.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

absl::StatusOr<std::vector<int32_t>> Ids(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                         const std::string& body, absl::Time now) {
  // Of any format: what calls look like in the answer is not asked here.
  DoorFacts facts;
  facts.tool_format = "hermes";
  RUNAHEAD_ASSIGN_OR_RETURN(const OpenAiCalls calls, ReadChatRequest(body, facts));
  return EncodeChat(chat_template, tokenizer, calls.calls[0].chat(), now, Always);
}

absl::Status Run(const std::string& path, absl::Time now) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromModel(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::FromModel(*file, *tokenizer));
  std::string body;
  while (std::getline(std::cin, body)) {
    const auto ids = Ids(chat_template, *tokenizer, body, now);
    const nlohmann::json line =
        ids.ok() ? nlohmann::json{{"ids", *ids}} : nlohmann::json{{"refused", std::string(ids.status().message())}};
    std::cout << line.dump() << "\n";
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  int64_t now = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &now)) {
    std::cerr << "usage: encode_chats MODEL.gguf NOW < BODIES > IDS\n";
    return 2;
  }
  const absl::Status status = runahead::Run(argv[1], absl::FromUnixSeconds(now));
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
