#include "server/gateway/openai/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

template <typename Number>
std::string ShortestText(Number value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

}  // namespace

std::string JsonString(absl::string_view text) {
  // Most texts of tokens stand in JSON as they are.
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), plain)) return absl::StrCat("\"", text, "\"");
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonNumber(double value) {
  return ShortestText(value);
}

std::string JsonNumber(float value) {
  return ShortestText(value);
}

void AddToJson(std::string& inside, absl::string_view value) {
  if (!inside.empty()) inside += ',';
  inside.append(value.data(), value.size());
}

}  // namespace runahead
