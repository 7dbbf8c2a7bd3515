// More streams than decode workers step at once, over real processes: who waits does so before its first token.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using testing::MetricOf;
using testing::ServingProcess;

constexpr int kStreams = 48, kTokens = 300;

class DecodeSlotsTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServingProcess> Worker(const std::string& role, const std::string& name) {
    std::vector<std::string> args = {RUNAHEAD_WORKER, "--role", role,      "--name", name, "--threads", "1",
                                     "--kv-memory",   "64MiB",  "--model", model_};
    if (role == "decode") args.insert(args.end(), {"--max-batch", "8"});
    return std::make_unique<ServingProcess>(args);
  }
  // Until workers and streams are there.
  void Start(int decode_workers) {
    processes_.push_back(Worker("prefill", "prefill-0"));
    std::vector<std::string> router = {RUNAHEAD_ROUTER, "--model", model_,
                                       "--workers=role=prefill,address=" + processes_[0]->address};
    for (int i = 0; i < decode_workers; ++i) {
      processes_.push_back(Worker("decode", absl::StrCat("decode-", i)));
      router.push_back("--workers=role=decode,address=" + processes_.back()->address);
    }
    router_ = std::make_unique<ServingProcess>(router);
    ASSERT_TRUE(Eventually([&] {
      return Router("runahead_workers{role=\"prefill\",state=\"ready\"}") == 1 &&
             Router("runahead_workers{role=\"decode\",state=\"ready\"}") == decode_workers;
    }));
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(router_->address, grpc::InsecureChannelCredentials()));
  }
  double Router(const std::string& line) { return MetricOf(router_->metrics, line); }
  double Depth() { return Router("runahead_queue_depth{priority=\"normal\"}"); }

  // All at once. Counts those that have a first token and not all of them.
  void RunStreams() {
    std::vector<std::thread> streams;
    for (int i = 0; i < kStreams; ++i) {
      streams.emplace_back([this, i] {
        v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(20, i), kTokens));
        request.mutable_stop()->set_ignore_eos(true);
        bool begun = false;
        const Answer answer = GenerateOver(*stub_, request, nullptr, [&](size_t tokens) {
          if (tokens == 0 || std::exchange(begun, true)) return;
          const int now = ++begun_;
          for (int most = most_begun_; most < now && !most_begun_.compare_exchange_weak(most, now);) {
          }
        });
        EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
        EXPECT_EQ(answer.ids.size(), size_t{kTokens});
        --begun_;
        ++ended_;
        const std::lock_guard lock(mu_);
        ++by_worker_[answer.started.plan().decode_worker()];
      });
    }
    while (ended_ < kStreams) deepest_ = std::max(deepest_, Depth());
    for (std::thread& stream : streams) stream.join();
  }

  const std::string model_ = WriteSynthetic(SyntheticModel(), "decode_slots");
  std::vector<std::unique_ptr<ServingProcess>> processes_;
  std::unique_ptr<ServingProcess> router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::atomic<int> begun_ = 0, most_begun_ = 0, ended_ = 0;
  double deepest_ = 0;
  std::mutex mu_;
  std::map<std::string, int> by_worker_;
};

TEST_F(DecodeSlotsTest, FortyEightStreamsOfEightSlotsWaitInTheQueueThatTheMetricShows) {
  Start(1);
  RunStreams();
  // Eight in steps, and a few whose prompts are computed for slots that are about to be free.
  EXPECT_LE(most_begun_, 16);
  EXPECT_GE(deepest_, 24);
  EXPECT_EQ(Depth(), 0);
  EXPECT_TRUE(Eventually([&] { return Router("runahead_decode_slots{state=\"free\",worker=\"decode-0\"}") == 8; }));
  EXPECT_GE(Router("runahead_queue_waits_total{cause=\"slot\"}"), 24);
}

TEST_F(DecodeSlotsTest, TwoDecodeWorkersAreUsedEvenly) {
  Start(2);
  RunStreams();
  EXPECT_LE(most_begun_, 32);
  for (const std::string name : {"decode-0", "decode-1"}) {
    EXPECT_GE(by_worker_[name], kStreams / 4) << name;
  }
}

}  // namespace
}  // namespace runahead
