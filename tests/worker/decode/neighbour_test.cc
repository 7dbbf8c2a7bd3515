// What one sequence of a batch may do to the others: nothing.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/pass_device.h"
#include "tests/testing/pass_model.h"
#include "tests/worker/decode/collecting_sink.h"
#include "worker/decode/engine.h"

namespace runahead {
namespace {

using testing::CollectingSink;
using testing::PassDevice;
using testing::PassModel;

constexpr int64_t kRowBytes = 16;

// A vocabulary of a real size, and a pass that costs next to nothing whatever the length: what a step takes beside it
// is the engine's own work.
class CheapModel final : public PassModel {
 public:
  explicit CheapModel(PassDevice& device)
      : PassModel(/*layers=*/1, /*hidden=*/1, /*head_dim=*/2, /*vocab=*/49152, /*context_length=*/200'000),
        device_(device) {}
  absl::Status Logits(const SectionRows& rows, const ConstTensor&, const MutTensor& logits) const override {
    device_.Call(rows.stream, [logits] {
      for (int64_t row = 0; row < logits.rows; ++row) {
        for (int64_t v = 0; v < logits.cols; ++v) logits.row<float>(row)[v] = static_cast<float>(v * 7919 % 1009) / 300;
      }
    });
    return absl::OkStatus();
  }

 private:
  PassDevice& device_;
};

class NeighbourLatency : public ::testing::Test {
 protected:
  // The shortest step in which a sequence without penalties has one with `prompt` tokens and all penalties beside it.
  // The shortest, for others use this machine too.
  absl::Duration ShortestStepBeside(int64_t prompt) {
    auto store = KvStore::Create({1, kRowBytes, 110'000, 5}, device_, RealClock());
    RUNAHEAD_CHECK(store.ok());
    absl::Duration shortest = absl::InfiniteDuration();
    DecodeEngineOptions options;
    options.on_step = [&shortest](const DecodeStep& step) {
      if (step.batch_size == 2) shortest = std::min(shortest, step.took);
    };
    auto engine = DecodeEngine::Create(device_, std::make_shared<CheapModel>(device_), **store, std::move(options));
    RUNAHEAD_CHECK(engine.ok());
    DecodeSequence neighbour = MakeSequence(**store, 8), penalised = MakeSequence(**store, prompt);
    neighbour.sampling.temperature = 1;
    penalised.sampling.repetition_penalty = 1.1f;
    penalised.sampling.presence_penalty = 0.2f;
    penalised.sampling.frequency_penalty = 0.1f;
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const DecodeSequence& sequence : {neighbour, penalised}) {
      sinks.push_back(std::make_shared<CollectingSink>());
      EXPECT_TRUE((*engine)->Add(sequence, sinks.back()).ok());
    }
    for (const auto& sink : sinks) EXPECT_EQ(sink->AwaitEnd(), absl::OkStatus());
    return shortest;
  }

 private:
  // Random ids, and all of their KV.
  static DecodeSequence MakeSequence(KvStore& store, int64_t prompt) {
    constexpr int64_t kTokens = 60;
    DecodeSequence sequence;
    for (int64_t i = 0; i < prompt; ++i) sequence.prompt_ids.push_back(static_cast<int32_t>(i * 31'337 % 49'152));
    sequence.output_ids = {0};
    sequence.max_tokens = kTokens;
    const absl::StatusOr<LeaseId> lease = store.Reserve({.prompt_tokens = prompt, .total_tokens = prompt + kTokens});
    RUNAHEAD_CHECK(lease.ok());
    sequence.lease = *lease;
    absl::StatusOr<KvStore::Write> write = store.BeginWrite(*lease, 0, 0, prompt);
    RUNAHEAD_CHECK(write.ok() && write->Commit().Wait().ok());
    return sequence;
  }

  PassDevice device_;
};

TEST_F(NeighbourLatency, DoesNotShowALongPromptUnderPenalties) {
  ShortestStepBeside(100'000);  // malloc keeps pages once it has seen large blocks come and go
  const absl::Duration short_prompt = ShortestStepBeside(8), long_prompt = ShortestStepBeside(100'000);
  std::printf("a step of two, one of them under penalties: %.3f ms with a prompt of 8 tokens, %.3f ms with 100,000\n",
              absl::ToDoubleMilliseconds(short_prompt), absl::ToDoubleMilliseconds(long_prompt));
  EXPECT_LT(long_prompt, 3 * short_prompt);
}

}  // namespace
}  // namespace runahead
