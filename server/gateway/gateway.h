// The OpenAI door: which path does what.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/byte_budget.h"
#include "server/base/drain_gate.h"
#include "server/base/metrics.h"
#include "server/base/task_thread.h"
#include "server/gateway/call_context.h"
#include "server/gateway/gateway_metrics.h"
#include "server/gateway/served_model.h"

namespace runahead {

struct GatewayParts {
  std::shared_ptr<grpc::Channel> channel;  // to the router
  v1::Inference::StubInterface& stub;      // over it
  MetricRegistry& registry;
  GatewayMetrics& metrics;
  ByteBudget& memory;
  DrainGate& gate;
  Clock& clock;
  std::vector<std::string> model_aliases;
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;  // as HostsOf gives them
  absl::Duration quiet_time;               // as in GatewayOptions
};

// Thread-safe. What it is made of outlives it, and it outlives its calls: the gate says when they have ended.
class Gateway {
 public:
  explicit Gateway(GatewayParts parts);

  // Answers it, now or later; never waits.
  void Handle(std::shared_ptr<HttpExchange> exchange);

 private:
  using Context = std::shared_ptr<CallContext>;
  struct Route {
    std::string method;
    void (Gateway::*handle)(Context);
  };

  static const std::map<std::string, Route>& Routes();
  absl::Status CheckHost(const HttpRequest& request) const;
  absl::Status CheckOrigin(const HttpRequest& request, HttpHeaders& headers) const;

  void Chat(Context context) { Generate(std::move(context), /*chat=*/true); }
  void Complete(Context context) { Generate(std::move(context), /*chat=*/false); }
  void Generate(Context context, bool chat);
  void StartGeneration(const Context& context, bool chat, const DoorFacts& facts);
  void RefuseTools(const Context& context, const DoorFacts& facts, const absl::Status& why);
  void Models(Context context);
  void Tokenize(Context context);
  void Detokenize(Context context);
  void Health(Context context);
  void Metrics(Context context);
  void Page(Context context);

  const GatewayParts parts_;
  ServedModel model_;
  TaskThread reader_;  // large bodies are read one after the other, beside the port's threads
};

}  // namespace runahead
