#include "server/gateway/openai/tool_places.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace runahead {
namespace {

// The name, or index, that stands at `place` of the schema.
std::string GivenName(const std::string& place, absl::string_view name, const ToolPlaces& places) {
  if (place == "/$defs") {
    const auto made = places.made_of.find(std::string(name));
    return made == places.made_of.end() ? std::string(name) : made->second;
  }
  const auto kept = places.kept.find(place);
  size_t index = 0;
  if (kept == places.kept.end() || !absl::SimpleAtoi(name, &index) || index >= kept->second.size()) {
    return std::string(name);
  }
  return absl::StrCat(kept->second[index]);
}

}  // namespace

std::string GivenPlace(absl::string_view text, const ToolPlaces& places) {
  std::string given;
  std::string place;
  while (absl::ConsumePrefix(&text, "/")) {
    const absl::string_view name = text.substr(0, std::min(text.find('/'), text.find(": ")));
    absl::StrAppend(&given, "/", GivenName(place, name, places));
    absl::StrAppend(&place, "/", name);
    text.remove_prefix(name.size());
  }
  return absl::StrCat(given, text);
}

}  // namespace runahead
