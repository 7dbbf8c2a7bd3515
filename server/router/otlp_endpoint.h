// Where traces are sent, and what goes with them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace runahead {

// A collector of OpenTelemetry that takes OTLP over HTTP.
struct OtlpEndpoint {
  bool tls = false;
  std::string host;  // a name or an IP address, IPv6 without its brackets
  int port = 0;
  std::string path;  // "/v1/traces"
};

// Takes "http://collector:4318", "https://otel.example/v1/traces": without a port it is the scheme's, without a path
// /v1/traces. INVALID_ARGUMENT names otlp_endpoint and what is wrong; what may be a password is not quoted.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(absl::string_view url);

// Headers of HTTP by name, each with a value.
using OtlpHeaders = std::vector<std::pair<std::string, std::string>>;

// Reads a file of lines "NAME: VALUE"; empty lines are left out. No `path`: none. Errors name otlp_headers, the file
// and the line, and quote nothing of it: values are keys.
absl::StatusOr<OtlpHeaders> ReadOtlpHeaders(const std::string& path);

}  // namespace runahead
