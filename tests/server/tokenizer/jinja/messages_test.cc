// What callers wrote is in no message, whatever fails: messages are logged.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/jinja_render.h"

namespace runahead::jinja {
namespace {

using testing::HasSubstr;
using testing::Not;

// Every text, key and number in it is the caller's.
constexpr const char* kGiven =
    R"({"u": "canary word", "v": "canary", "l": ["canary", ["canary"]], "d": {"canary": "canary", "items": 7654321},
        "n": 7654321, "f": 7654321.5, "e": null, "t": true})";

// Names of what takes part: the caller's, the template's own, what is missing, and what is looked up by a caller's
// word.
const std::vector<std::string> kOperands = {"u",           "v",       "l",      "d",      "n",        "f",
                                            "e",           "t",       "x",      "d[v]",   "d[u]",     "d[u ~ 'x']",
                                            "l[n]",        "u[n]",    "x.y",    "[u]",    "{'a': u}", "d.keys",
                                            "namespace()", "u ~ 'x'", "(l, u)", "d.none", "none"};

class Messages : public testing::Test {
 protected:
  void Try(const std::string& source) {
    const std::string text = Rendered("{% macro m(a) %}{{ a.b.c }}{% endmacro %}" + source, kGiven);
    if (!text.starts_with("error: ")) return;
    ++failed_;
    const std::string message = text.substr(text.find("`: ") == std::string::npos ? 0 : text.find("`: "));
    EXPECT_THAT(message, Not(HasSubstr("canary"))) << source << ": " << text;
    EXPECT_THAT(message, Not(HasSubstr("7654321"))) << source << ": " << text;
  }

  int failed_ = 0;
};

TEST_F(Messages, OfOperators) {
  for (const std::string& a : kOperands) {
    for (const std::string& b : kOperands) {
      for (const char* symbol : {"+", "-", "*", "%", "~", "<", ">=", "==", "in", "not in", "and"}) {
        Try(absl::StrCat("{{ ", a, " ", symbol, " ", b, " }}"));
      }
      Try(absl::StrCat("{{ ", a, "[", b, "] | tojson }}"));
      Try(absl::StrCat("{{ ", a, "[", b, "].c }}"));
      Try(absl::StrCat("{{ ", a, "[", b, "]() }}"));
      Try(absl::StrCat("{{ ", a, "[", b, "][", a, "][", b, "] }}"));
      Try(absl::StrCat("{{ ", a, "[", b, ":", a, "] }}"));
      Try(absl::StrCat("{{ {", a, ": ", b, "} }}"));
      Try(absl::StrCat("{{ ", a, "(", b, ") }}"));
    }
    Try(absl::StrCat("{{ -", a, " }}"));
    Try(absl::StrCat("{{ ", a, ".b.c }}"));
    Try(absl::StrCat("{{ ", a, "(", a, "=", a, ") }}"));
    Try(absl::StrCat("{% for p, q in ", a, " %}{{ p[q].r.s }}{% endfor %}"));
    Try(absl::StrCat("{% for p in ", a, " %}{{ d[p].r.s }}{% endfor %}"));
    Try(absl::StrCat("{% set p, q, r = ", a, " %}"));
    Try(absl::StrCat("{% set u.p = ", a, " %}"));
    Try(absl::StrCat("{{ m(", a, ") }}{{ m(", a, ", 1) }}"));
    Try(absl::StrCat("{{ m(", a, ") }}"));
  }
  EXPECT_GT(failed_, 3000);
}

TEST_F(Messages, OfFiltersTestsMethodsAndFunctions) {
  for (const std::string name : {"namespace",  "raise_exception",
                                 "range",      "strftime_now",
                                 "boolean",    "defined",
                                 "eq",         "even",
                                 "float",      "in",
                                 "integer",    "iterable",
                                 "mapping",    "none",
                                 "number",     "odd",
                                 "sequence",   "string",
                                 "true",       "undefined",
                                 "count",      "default",
                                 "dictsort",   "first",
                                 "get",        "int",
                                 "items",      "keys",
                                 "last",       "length",
                                 "list",       "map",
                                 "max",        "min",
                                 "reject",     "rejectattr",
                                 "reverse",    "select",
                                 "selectattr", "sort",
                                 "values",     "capitalize",
                                 "endswith",   "indent",
                                 "join",       "lower",
                                 "lstrip",     "replace",
                                 "rstrip",     "safe",
                                 "split",      "startswith",
                                 "strip",      "title",
                                 "tojson",     "trim",
                                 "upper"}) {
    for (const std::string& a : kOperands) {
      for (const char* b : {"u", "v", "l", "d", "n", "x", "d[v]"}) {
        Try(absl::StrCat("{{ t and ", a, " | ", name, "(", b, ") | first }}"));
        Try(absl::StrCat("{{ t and ", a, " | ", name, "(", b, ", ", a, ", ", b, ") }}"));
        Try(absl::StrCat("{{ t and ", a, " is ", name, "(", b, ") }}"));
        Try(absl::StrCat("{{ ", a, ".", name, "(", b, ", ", b, ")[", b, "].c }}"));
        Try(absl::StrCat("{{ ", name, "(", a, ", ", b, ") }}"));
      }
      for (const char* argument : {"attribute", "default", "d", "indent"}) {
        Try(absl::StrCat("{{ (t and l | ", name, "(", argument, "=", a, ") | list)[0].b.c }}"));
      }
      Try(absl::StrCat("{{ t and ", a, " | ", name, " | tojson }}{{ ", name, "(", a, ") }}"));
    }
  }
  EXPECT_GT(failed_, 20'000);
}

TEST(MessagesOfFailures, NameWhatTheTemplateItselfWrote) {
  EXPECT_THAT(Rendered("{{ d[v ~ ''].b }}", R"({"d": {}, "v": "canary"})"),
              HasSubstr("there is no b of it: '...' is undefined"));
  EXPECT_THAT(Rendered("{{ d['a'].b }}", R"({"d": {}})"), HasSubstr("there is no b of it: 'a' is undefined"));
  EXPECT_THAT(Rendered("{{ d['a' ~ v].b }}", R"({"d": {}, "v": "canary"})"), HasSubstr("'a...' is undefined"));
  EXPECT_THAT(Rendered("{{ (l | map(attribute='a.b') | list)[0] + 1 }}", R"({"l": [{"a": {}}]})"), HasSubstr("of +"));
  EXPECT_THAT(Rendered("{{ l | map('a' ~ v) }}", R"({"l": [1], "v": "canary"})"),
              HasSubstr("the filter or test 'a...' is not known here"));
}

}  // namespace
}  // namespace runahead::jinja
