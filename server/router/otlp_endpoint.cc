#include "server/router/otlp_endpoint.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/printable.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr char kTracesPath[] = "/v1/traces";
constexpr size_t kMostUrlBytes = 2048;
constexpr int64_t kMostHeaderBytes = 16 << 10;
constexpr size_t kMostHeaders = 32;

absl::Status BadEndpoint(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("otlp_endpoint: ", why));
}

bool IsVisible(char c) {
  return c > ' ' && c <= '~';
}

// As RFC 9110 has a token.
bool IsHeaderName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("!#$%&'*+-.^_`|~", c);
  });
}

bool IsHeaderValue(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) { return c == ' ' || IsVisible(c); });
}

absl::StatusOr<std::pair<std::string, std::string>> ParseOtlpHeader(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
  if (parts.size() < 2) return absl::InvalidArgumentError("is not written NAME: VALUE");
  const absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
  if (!IsHeaderName(parts[0])) return absl::InvalidArgumentError("has a name that no HTTP header may have");
  if (!IsHeaderValue(value)) return absl::InvalidArgumentError("has no value, or one that is not printable ASCII");
  for (const char* own : {"content-type", "content-length", "content-encoding", "transfer-encoding", "host"}) {
    if (absl::EqualsIgnoreCase(parts[0], own)) {
      return absl::InvalidArgumentError(absl::StrCat("gives ", own, ", which the router says itself"));
    }
  }
  return std::pair(std::string(parts[0]), std::string(value));
}

}  // namespace

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(absl::string_view url) {
  OtlpEndpoint endpoint;
  absl::string_view rest = url;
  if (url.size() > kMostUrlBytes || !std::all_of(url.begin(), url.end(), IsVisible)) {
    return BadEndpoint(absl::StrCat("it is not a URL of at most ", kMostUrlBytes, " printable characters of ASCII"));
  }
  if (absl::StrContains(url, '@')) {
    return BadEndpoint("a name and a password have no place in it; give them as a header, by otlp_headers");
  }
  endpoint.tls = absl::ConsumePrefix(&rest, "https://");
  if (!endpoint.tls && !absl::ConsumePrefix(&rest, "http://")) {
    return BadEndpoint(absl::StrCat("'", Printable(url),
                                    "' begins with neither http:// nor https://; write it like http://127.0.0.1:4318"));
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority(rest.substr(0, slash));
  endpoint.path = slash + 1 < rest.size() ? std::string(rest.substr(slash)) : kTracesPath;
  const size_t colon = authority.rfind(':'), bracket = authority.rfind(']');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  const std::string scheme_port = endpoint.tls ? ":443" : ":80";
  const absl::StatusOr<HostPort> address = ParseHostPort(has_port ? authority : authority + scheme_port);
  if (!address.ok()) return BadEndpoint(address.status().message());
  if (address->port == 0) return BadEndpoint("its port is 0");
  if (absl::StrContains(authority, '?') || absl::StrContains(endpoint.path, '#')) {
    return BadEndpoint("it has a query without a path, or a fragment");
  }
  endpoint.host = address->host;
  endpoint.port = address->port;
  return endpoint;
}

absl::StatusOr<OtlpHeaders> ReadOtlpHeaders(const std::string& path) {
  OtlpHeaders headers;
  if (path.empty()) return headers;
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMostHeaderBytes);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("otlp_headers: ", text.status().message()));
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    auto header = ParseOtlpHeader(line);
    if (header.ok() && headers.size() == kMostHeaders) {
      header = absl::InvalidArgumentError(absl::StrCat("is the header behind the ", kMostHeaders, " that may be"));
    }
    if (!header.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("otlp_headers: ", path, ": line ", number, " ", header.status().message()));
    }
    headers.push_back(*std::move(header));
  }
  return headers;
}

}  // namespace runahead
