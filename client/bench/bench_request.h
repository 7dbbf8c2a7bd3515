// One request of a load, whatever door it goes to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace runahead {

struct BenchMessage {
  std::string role;
  std::string content;
};

struct BenchRequest {
  // Exactly one of them is not empty.
  std::vector<int32_t> ids = {};
  std::string prompt = {};
  std::vector<BenchMessage> messages = {};
  int32_t max_tokens = 1;
  bool ignore_eos = false;  // the model's end tokens do not end the answer
};

// The request as a chat, where its prompt is a text: one message of the user.
inline void MakeChat(BenchRequest& request) {
  if (request.prompt.empty()) return;
  request.messages = {{"user", request.prompt}};
  request.prompt.clear();
}

}  // namespace runahead
