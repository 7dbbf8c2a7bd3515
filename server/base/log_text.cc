#include "server/base/log_text.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/escaped.h"
#include "server/base/printable.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

// Stands without quotes.
bool IsWord(absl::string_view text) {
  const auto may = [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::string_view("-_.:/@+").find(c) != absl::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), may);
}

struct TextOf {
  std::string operator()(int64_t number) const { return absl::StrCat(number); }
  std::string operator()(double number) const { return absl::StrCat(number); }
  std::string operator()(const std::string& text) const {
    if (IsWord(text)) return text;
    return absl::StrCat("\"", Printable(text, std::numeric_limits<int>::max()), "\"");
  }
  std::string operator()(const std::pair<std::string, double>& pair) const {
    return absl::StrCat((*this)(pair.first), ":", pair.second);
  }
  template <typename T>
  std::string operator()(const std::vector<T>& list) const {
    return absl::StrJoin(list, ",", [this](std::string* out, const T& item) { absl::StrAppend(out, (*this)(item)); });
  }
};

struct JsonValueOf {
  template <typename T>
  Json operator()(const T& value) const {
    return value;
  }
  Json operator()(const std::vector<std::pair<std::string, double>>& pairs) const {
    Json object = Json::object();
    for (const auto& [name, value] : pairs) object[name] = value;
    return object;
  }
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string TextLine(absl::string_view component, absl::string_view message, const std::vector<LogField>& fields) {
  std::string line = absl::StrCat("[", component, "] ", Escaped(message, absl::string_view::npos, /*quotes=*/false));
  for (const LogField& field : fields) absl::StrAppend(&line, " ", field.name, "=", std::visit(TextOf(), field.value));
  return line;
}

std::string JsonMembers(absl::string_view component, absl::string_view message, const std::vector<LogField>& fields) {
  Json line = {{"component", std::string(component)}, {"message", std::string(message)}};
  for (const LogField& field : fields) line[field.name] = std::visit(JsonValueOf(), field.value);
  return Dump(line).substr(1);
}

std::string JsonOf(const std::string& text) {
  return Dump(text);
}

}  // namespace runahead
