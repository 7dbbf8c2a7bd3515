// One request of the gateway with what all routes add to their answers.
#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/base/drain_gate.h"
#include "server/gateway/gateway_metrics.h"
#include "server/gateway/http_exchange.h"
#include "server/gateway/openai/error.h"

namespace runahead {

// Thread-safe. Held by whoever works on the answer. Calls to the router end before it: when the last one has ended, its
// `pass` says to the gate that the channel, which calls hold, may go.
class CallContext {
 public:
  // `route` is the path as metrics have it. `headers` go with every answer.
  CallContext(std::shared_ptr<HttpExchange> exchange, std::string route, HttpHeaders headers, DrainGate::Pass pass,
              GatewayMetrics& metrics);
  ~CallContext();

  const HttpRequest& request() const { return exchange_->request(); }
  // The client's own, where it sent a good one; else drawn.
  const std::string& request_id() const { return request_id_; }

  // What goes on to the router with a call for this request: the API key, the tenant, the trace.
  void Describe(grpc::ClientContext& context) const;

  void Reply(std::string json);
  void Reply(HttpReply reply);
  // `sent`: how the request called what the status may blame.
  void Fail(const absl::Status& status, const SentMembers& sent = {});

  void BeginEvents();
  // One event whose data is `json`, or a comment.
  void SendEvents(std::string text, std::function<void()> sent) { exchange_->Send(std::move(text), std::move(sent)); }
  // `last`: the last events, which go with the end.
  void EndEvents(std::string last) { exchange_->EndEvents(std::move(last)); }
  void OnGone(std::function<void()> gone) { exchange_->OnGone(std::move(gone)); }
  void WakeAfter(absl::Duration pause, std::function<void()> wake) { exchange_->WakeAfter(pause, std::move(wake)); }

 private:
  const DrainGate::Pass pass_;  // the first member, so that it ends last
  const std::shared_ptr<HttpExchange> exchange_;
  const std::string route_;
  const std::string request_id_;
  HttpHeaders headers_;
  GatewayMetrics& metrics_;
};

}  // namespace runahead
