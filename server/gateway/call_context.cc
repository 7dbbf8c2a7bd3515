#include "server/gateway/call_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/random.h"
#include "server/base/trace_context.h"
#include "server/rpc/tenant_key.h"

namespace runahead {
namespace {

constexpr size_t kMostIdBytes = 128;              // as the router takes them
constexpr size_t kMostAuthorizationBytes = 1100;  // "Bearer " and the longest key

// gRPC takes no other values, and ends the process over them.
bool IsMetadataValue(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::string RequestIdOf(const HttpRequest& request) {
  const absl::string_view given = request.Header("x-request-id");
  if (!given.empty() && given.size() <= kMostIdBytes && IsMetadataValue(given)) return std::string(given);
  return absl::StrFormat("%016x%016x", RandomBits64(), RandomBits64());
}

}  // namespace

CallContext::CallContext(std::shared_ptr<HttpExchange> exchange, std::string route, HttpHeaders headers,
                         DrainGate::Pass pass, GatewayMetrics& metrics)
    : pass_(std::move(pass)),
      exchange_(std::move(exchange)),
      route_(std::move(route)),
      request_id_(RequestIdOf(exchange_->request())),
      headers_(std::move(headers)),
      metrics_(metrics) {
  headers_.emplace_back("x-request-id", request_id_);
  metrics_.in_flight.Increment();
}

CallContext::~CallContext() {
  metrics_.in_flight.Decrement();
}

void CallContext::Describe(grpc::ClientContext& context) const {
  const absl::string_view key = request().Header("authorization");
  if (!key.empty() && key.size() <= kMostAuthorizationBytes && IsMetadataValue(key)) {
    context.AddMetadata("authorization", std::string(key));
  }
  if (const absl::string_view tenant = request().Header(kTenantKey); IsTenantName(tenant)) {
    context.AddMetadata(kTenantKey, std::string(tenant));
  }
  if (const auto trace = ParseTraceparent(request().Header(kTraceparent))) {
    context.AddMetadata(kTraceparent, Traceparent(*trace));
  }
}

void CallContext::Reply(std::string json) {
  Reply(HttpReply{.body = std::move(json)});
}

void CallContext::Reply(HttpReply reply) {
  metrics_.Answered(route_, reply.status);
  reply.headers.insert(reply.headers.end(), headers_.begin(), headers_.end());
  exchange_->Reply(std::move(reply));
}

void CallContext::Fail(const absl::Status& status, const SentMembers& sent) {
  OpenAiError error = ToOpenAiError(status, sent);
  HttpReply reply{.status = error.http_status, .body = std::move(error.body)};
  if (error.retry_after) {
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(*error.retry_after, absl::Seconds(1)));
    reply.headers.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(1, seconds)));
  }
  if (error.http_status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  Reply(std::move(reply));
}

void CallContext::BeginEvents() {
  metrics_.Answered(route_, 200);
  exchange_->BeginEvents(headers_);
}

}  // namespace runahead
