// How a line of the log is written, without its time, level and process.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/base/logging.h"

namespace runahead {

// "[link] message count=3 name="a b" parts=700,324 stages=queue:0.001,plan:0.002". Strings that are more than a word
// stand in quotes; what steers a terminal, and bytes that are no UTF-8, are escaped everywhere.
std::string TextLine(absl::string_view component, absl::string_view message, const std::vector<LogField>& fields);

// Members of a JSON object and its closing brace: "component":"link","message":"message","count":3}. What is no UTF-8
// becomes U+FFFD, numbers that are none become null.
std::string JsonMembers(absl::string_view component, absl::string_view message, const std::vector<LogField>& fields);

// As a JSON string, in quotes.
std::string JsonOf(const std::string& text);

}  // namespace runahead
