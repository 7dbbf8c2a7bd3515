// Templates in tests of the evaluator.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/tokenizer/chat_values.h"
#include "server/tokenizer/jinja/template.h"

namespace runahead::jinja {

inline absl::StatusOr<Text> RenderText(std::string_view source, std::string_view variables = "{}",
                                       KeepGoing keep_going = Always, const Limits& limits = {}) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  const auto json = JsonValues(variables);
  if (!json.ok()) return json.status();
  std::vector<std::pair<std::string, Value>> given;
  for (const auto& [key, value] : As<Dict>(*json)->items) given.emplace_back(ToUtf8(*key), value);
  return parsed->Render(std::move(given), absl::FromUnixSeconds(1753963200), keep_going,
                        limits);  // 31 July 2025, noon UTC
}

// What the template makes of `variables`, a JSON object; "error: ..." where it fails.
inline std::string Rendered(std::string_view source, std::string_view variables = "{}") {
  const auto text = RenderText(source, variables);
  return text.ok() ? ToUtf8(*text) : "error: " + std::string(text.status().message());
}

// The same with what is the template's in <>.
inline std::string Marked(std::string_view source, std::string_view variables = "{}") {
  const auto text = RenderText(source, variables);
  if (!text.ok()) return "error: " + std::string(text.status().message());
  std::string marked;
  for (const TextPart& part : Parts(*text)) marked += part.parse_special ? "<" + part.text + ">" : part.text;
  return marked;
}

}  // namespace runahead::jinja
