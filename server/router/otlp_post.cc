#include "server/router/otlp_post.h"

#include <httplib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "server/base/address.h"
#include "server/base/printable.h"
#include "server/base/version.h"

namespace runahead {
namespace {

constexpr absl::Duration kConnectPatience = absl::Seconds(2);
constexpr char kRouterEnds[] = "the router ends";
// An answer says nothing but how many spans were not taken, and why: of what is longer the rest is not read.
constexpr size_t kMostAnswerBytes = 64 << 10;
// Longer than any collector means it: what is more is a mistake, and would hold traces up until they are dropped.
constexpr absl::Duration kLongestAfter = absl::Minutes(10);

std::unique_ptr<httplib::ClientImpl> ClientOf(const OtlpEndpoint& endpoint) {
  if (!endpoint.tls) return std::make_unique<httplib::ClientImpl>(endpoint.host, endpoint.port);
  return std::make_unique<httplib::SSLClient>(endpoint.host, endpoint.port);
}

// Seconds; a date, which the header may have as well, counts as absent.
std::optional<absl::Duration> AfterOf(const httplib::Response& response) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(response.get_header_value("Retry-After"), &seconds) || seconds < 0) return std::nullopt;
  return std::min(absl::Seconds(seconds), kLongestAfter);
}

// What a collector that took the traces says of spans that it did not; empty where it took all.
std::string PartlyRefused(const std::string& body) {
  const nlohmann::json answer = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("partialSuccess")) return "";
  const nlohmann::json& partial = answer["partialSuccess"];
  if (!partial.is_object() || !partial.contains("rejectedSpans")) return "";
  const nlohmann::json& count = partial["rejectedSpans"];  // a string, as 64-bit numbers are
  const std::string rejected = count.is_string() ? count.get<std::string>() : count.dump();
  if (rejected == "0") return "";
  const nlohmann::json message = partial.value("errorMessage", nlohmann::json());
  return absl::StrCat(
      "it took the traces but for ", Printable(rejected),
      " spans: ", message.is_string() ? Printable(message.get<std::string>(), kOneLineCharacters) : "it says no more");
}

// By what comes before the body.
OtlpAnswer AnswerOf(const httplib::Response& response) {
  if (response.status >= 200 && response.status < 300) return {OtlpResult::kTaken, ""};
  OtlpAnswer answer{OtlpResult::kRefused, absl::StrCat("it answers ", response.status)};
  for (const int later : {429, 502, 503, 504}) {
    if (response.status == later) answer.result = OtlpResult::kLater;
  }
  if (answer.result == OtlpResult::kLater) answer.after = AfterOf(response);
  return answer;
}

}  // namespace

OtlpPost::OtlpPost(const OtlpEndpoint& endpoint, const OtlpHeaders& headers, HostLookup::Resolver resolver)
    : path_(endpoint.path),
      headers_(headers),
      host_(endpoint.host),
      address_(FormatHostPort({endpoint.host, endpoint.port})),
      lookup_(endpoint.host, std::move(resolver)),
      client_(ClientOf(endpoint)) {}

OtlpPost::~OtlpPost() = default;

OtlpAnswer OtlpPost::Send(const std::string& json, absl::Duration patience) {
  if (is_cut()) return {OtlpResult::kLater, kRouterEnds};
  const absl::Duration connect = std::min(patience, kConnectPatience);
  const absl::StatusOr<std::vector<std::string>> addresses = lookup_.Find(connect);
  if (absl::IsCancelled(addresses.status())) return {OtlpResult::kLater, kRouterEnds};
  if (!addresses.ok()) return {OtlpResult::kLater, absl::StrCat("no address: ", addresses.status().message())};
  const absl::Time end = MonotonicNow() + connect + patience;
  client_->set_connection_timeout(absl::ToChronoMicroseconds(connect));
  client_->set_read_timeout(absl::ToChronoMicroseconds(patience));
  client_->set_write_timeout(absl::ToChronoMicroseconds(patience));
  httplib::Request request;
  request.method = "POST";
  request.path = path_;
  for (const auto& [name, value] : headers_) request.set_header(name, value);
  request.set_header("Host", address_);
  request.set_header("User-Agent", absl::StrCat("runahead-router/", Version()));
  request.set_header("Content-Type", "application/json");
  request.body = json;
  // The status says what came of the traces, whatever becomes of the body behind it: they would come again otherwise.
  std::optional<OtlpAnswer> answer;
  request.response_handler = [&answer](const httplib::Response& head) {
    answer = AnswerOf(head);
    return true;
  };
  std::string body;
  request.content_receiver = [&body, end](const char* bytes, size_t size, uint64_t, uint64_t) {
    body.append(bytes, std::min(size, kMostAnswerBytes - body.size()));
    return body.size() < kMostAnswerBytes && MonotonicNow() < end;
  };
  const httplib::Result result = SendToFirst(*addresses, request);
  if (result) answer = AnswerOf(*result);  // a 204 has no body, nor is the handler asked
  if (!answer) return {OtlpResult::kLater, absl::StrCat("no answer: ", httplib::to_string(result.error()))};
  if (answer->result == OtlpResult::kTaken) answer->why = PartlyRefused(body);
  return *std::move(answer);
}

// A name may have addresses at which nothing listens: "localhost" has two. The library would ask for them itself, and
// nothing could end that.
httplib::Result OtlpPost::SendToFirst(const std::vector<std::string>& addresses, httplib::Request& request) {
  for (size_t i = 0;; ++i) {
    client_->set_hostname_addr_map({{host_, addresses[i]}});
    httplib::Result result = client_->send(request);
    const bool unreachable =
        result.error() == httplib::Error::Connection || result.error() == httplib::Error::ConnectionTimeout;
    if (!unreachable || i + 1 == addresses.size() || is_cut()) return result;
  }
}

bool OtlpPost::is_cut() const {
  MutexLock lock(mu_);
  return cut_;
}

void OtlpPost::Cut() {
  {
    MutexLock lock(mu_);
    cut_ = true;
  }
  lookup_.Cut();
  client_->stop();
}

}  // namespace runahead
