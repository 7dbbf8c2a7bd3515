// An error of the service as the field writes it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/gateway/openai/tool_places.h"

namespace runahead {

struct OpenAiError {
  int http_status = 500;
  std::string body;                                // {"error":{"message","type","param","code"}}
  std::optional<absl::Duration> retry_after = {};  // where the client may try again
};

// The members of one request for fields of the service that may come from several. Empty: the field's own name.
struct SentMembers {
  std::string prompt = {};     // "messages" of a chat; "prompt[2]" of one of several prompts
  std::string structure = {};  // such as "guided_regex", "tools"
  int tool = 0;                // of `tools`, the first that may be called: ForcedCall's tool0
  ToolPlaces places = {};      // of `tools`
  bool one_stop = false;       // `stop` is one text, no array
};

// `status` is not OK. Members are named as this door has them: of sampling.top_p it says top_p.
OpenAiError ToOpenAiError(const absl::Status& status, const SentMembers& sent = {});

}  // namespace runahead
