#include "server/grammar/schema_formats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// Dates and times are those of RFC 3339, and narrower: no year 0 and no leap seconds, which libraries refuse, and at
// most six digits of a fraction. Days are those of their months.
std::string DateExpression() {
  const std::string year = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])";
  const std::string fourth = "(0[48]|[2468][048]|[13579][26])";  // of two digits, those that 4 divides, but for 00
  const std::string leap_year = absl::StrCat("([0-9]{2}", fourth, "|", fourth, "00)");
  return absl::StrCat("(", year, "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|",
                      "02-(0[1-9]|1[0-9]|2[0-8]))|", leap_year, "-02-29)");
}
std::string TimeExpression() {
  const std::string hour = "([01][0-9]|2[0-3])";
  return absl::StrCat(hour, ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[-+]", hour, ":[0-5][0-9])");
}
// Without zeros before a number: some take what follows for octal, others refuse it.
std::string Ipv4Expression() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return absl::StrCat("(", byte, "\\.){3}", byte);
}

}  // namespace

// Those without an expression are those whose expressions in xgrammar 0.2.8 need no escapes in JSON.
const std::vector<SchemaFormat>& SchemaFormats() {
  static const auto* const formats =
      new std::vector<SchemaFormat>{{"date", absl::StrCat("^", DateExpression(), "$")},
                                    {"date-time", absl::StrCat("^", DateExpression(), "T", TimeExpression(), "$")},
                                    {"duration"},
                                    {"email"},
                                    {"hostname"},
                                    {"ipv4", absl::StrCat("^", Ipv4Expression(), "$")},
                                    {"ipv6"},
                                    {"time", absl::StrCat("^", TimeExpression(), "$")},
                                    {"uri-reference"},
                                    {"uri"},
                                    {"uuid"}};
  return *formats;
}

const SchemaFormat* FindSchemaFormat(absl::string_view name) {
  const auto found = std::find_if(SchemaFormats().begin(), SchemaFormats().end(),
                                  [&](const SchemaFormat& one) { return one.name == name; });
  return found == SchemaFormats().end() ? nullptr : &*found;
}

}  // namespace runahead
