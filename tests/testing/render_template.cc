// Renders chats for tests/golden/check_templates.py: a JSON object a line on stdin, one a line on stdout.
// In: template, bos, eos, and what ChatFromJson takes.
// Out: text, or error.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/tokenizer/chat_template.h"
#include "tests/testing/json_chat.h"

namespace runahead {
namespace {

nlohmann::json Answer(const nlohmann::json& question) {
  const auto parsed = ChatTemplate::Parse(question.at("template").get<std::string>(),
                                          question.at("bos").get<std::string>(), question.at("eos").get<std::string>());
  if (!parsed.ok()) return {{"error", std::string(parsed.status().message())}};
  const auto text = parsed->Render(ChatFromJson(question.dump()));
  if (!text.ok()) return {{"error", std::string(text.status().message())}};
  return {{"text", *text}};
}

}  // namespace
}  // namespace runahead

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << runahead::Answer(nlohmann::json::parse(line)).dump() << "\n";
}
