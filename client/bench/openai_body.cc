#include "client/bench/openai_body.h"

#include <nlohmann/json.hpp>

namespace runahead {

std::string OpenAiBody(const BenchRequest& request, const std::string& model) {
  nlohmann::json body = {{"model", model},
                         {"max_tokens", request.max_tokens},
                         {"temperature", 0},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (request.ignore_eos) body["ignore_eos"] = true;  // not OpenAI's: absent unless asked for
  if (!request.messages.empty()) {
    nlohmann::json messages = nlohmann::json::array();
    for (const BenchMessage& message : request.messages) {
      messages.push_back({{"role", message.role}, {"content", message.content}});
    }
    body["messages"] = std::move(messages);
  } else if (!request.ids.empty()) {
    body["prompt"] = request.ids;
  } else {
    body["prompt"] = request.prompt;
  }
  return body.dump();
}

}  // namespace runahead
