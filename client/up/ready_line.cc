#include "client/up/ready_line.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"

namespace runahead {
namespace {

absl::Status Problem(absl::string_view line, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("ready line '", absl::CHexEscape(line.substr(0, 200)), "' ", problem));
}

absl::StatusOr<std::string> Address(const nlohmann::json& object, const char* key, absl::string_view line) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return Problem(line, absl::StrCat("has no text '", key, "'"));
  const std::string text = found->get<std::string>();
  const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
  if (!parsed.ok()) return Problem(line, absl::StrCat("has a wrong '", key, "': ", parsed.status().message()));
  if (parsed->port == 0) return Problem(line, absl::StrCat("has port 0 as '", key, "'"));
  return text;
}

}  // namespace

absl::StatusOr<ReadyLine> ParseReadyLine(absl::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Problem(line, "is no JSON object");
  ReadyLine ready;
  RUNAHEAD_ASSIGN_OR_RETURN(ready.address, Address(object, "address", line));
  RUNAHEAD_ASSIGN_OR_RETURN(ready.metrics, Address(object, "metrics", line));
  return ready;
}

}  // namespace runahead
