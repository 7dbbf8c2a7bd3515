// A whole router in the test's process, with the tokenizer of a synthetic checkpoint, in front of fake workers; and a
// client of it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/router/cache_service.h"
#include "server/router/inference_service.h"
#include "server/router/worker_registry.h"
#include "server/rpc/server.h"
#include "tests/testing/fake_worker.h"

namespace runahead::testing {

// What a client got from one Generate call.
struct Got {
  absl::Status status;
  std::vector<v1::GenerateResponse> responses;

  const v1::Started& started() const { return responses.at(0).started(); }
  const v1::Finished& finished() const { return responses.back().finished(); }
  std::vector<int32_t> ids() const;
  std::string text() const;  // all of it
};

// One Generate call whose messages are read one by one.
class Call {
 public:
  // `traceparents` go with it as metadata of that name, `tenant` unless it is empty, and `metadata` as it is.
  Call(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request,
       absl::Duration timeout = absl::InfiniteDuration(), const std::vector<std::string>& traceparents = {},
       const std::string& tenant = "", const std::map<std::string, std::string>& metadata = {});
  // The next message; nothing at the end.
  std::optional<v1::GenerateResponse> Read();
  void Cancel() { context_.TryCancel(); }
  // Reads to the end.
  Got Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<v1::GenerateResponse>> reader_;
  Got got_;
};

// Longer than anything here takes: what waits in vain ends with DEADLINE_EXCEEDED.
inline constexpr absl::Duration kInVain = absl::Seconds(20);

struct RouterSetup {
  int prefill = 2;
  int decode = 1;
  int vacant = 0;  // seats for more prefill workers, behind those of the list
  int queue_size = 256;
  int max_sessions = 64;
  int max_streams = 1024;
  bool experiments = true;
  absl::Duration stall_timeout = absl::Seconds(30);
  absl::Duration absence_timeout = kInVain;
  absl::Duration move_patience = kInVain;
  std::string dtype = "auto";
  std::string trace = "off";
  Tracer::Export exported = nullptr;  // where traces go besides
  ReserveMode reserve = ReserveMode::kExpected;
  bool known_beginnings = true;
  KeyDoor* keys = nullptr;                                // who may call; null: anybody
  std::function<void(v1::Capabilities&)> able = nullptr;  // changes what the workers say of themselves
  std::function<void(FakeWorker&)> before = nullptr;      // called with each, before the router knows it
  Clock* clock = nullptr;                                 // of calls and sessions; null: the real one
};

inline constexpr int kFixtureContext = 4096;

class RouterFixture : public ::testing::Test {
 protected:
  void SetUp() override;  // reads the checkpoint
  void TearDown() override;

  // Starts workers and router and waits until all have joined.
  void Start(const RouterSetup& setup = {});
  // Blocks until so many workers are ready; the test fails where they do not become so.
  void AwaitReady(int prefill, int decode);

  v1::GenerateRequest Prompt(const std::string& text, int max_tokens);
  v1::GenerateRequest Ids(int tokens, int max_tokens);  // a prompt of so many tokens
  Got Generate(const v1::GenerateRequest& request) { return Call(*stub_, request).Finish(); }
  v1::Capabilities Able(const std::string& name, v1::WorkerRole role);
  // Of a metric that has this name and these labels, as text: "runahead_x_total{code=\"OK\"}".
  double Metric(const std::string& name) const;
  // Blocks until the metric has this value; a failure where it does not come to it.
  [[nodiscard]] ::testing::AssertionResult MetricBecomes(const std::string& name, double value) const;

  ModelInfo model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  absl::StatusOr<ChatTemplate> chat_template_ = absl::UnknownError("not read");
  std::vector<std::unique_ptr<FakeWorker>> prefill_;
  std::vector<std::unique_ptr<FakeWorker>> decode_;
  MetricRegistry metric_registry_{"none"};
  std::unique_ptr<RouterMetrics> metrics_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<FleetQueue> queue_;
  std::unique_ptr<Sequencer> sequencer_;
  LiveTable table_;
  std::unique_ptr<RouterParts> parts_;
  std::unique_ptr<WorkerRegistry> registry_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<CacheService> cache_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::Inference::StubInterface> stub_;
  std::unique_ptr<v1::Cache::StubInterface> cache_stub_;
};

}  // namespace runahead::testing
