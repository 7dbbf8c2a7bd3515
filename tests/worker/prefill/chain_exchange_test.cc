#include "worker/prefill/chain_exchange.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await.h"
#include "tests/worker/prefill/given_prefix.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

// Gives each layer when it is told to. Thread-safe.
class HeldPrefix : public GivenPrefix {
 public:
  using GivenPrefix::GivenPrefix;

  Event Load(int64_t layer, int64_t first, BufferRef into) override RUNAHEAD_EXCLUDES(mu_) {
    GivenPrefix::Load(layer, first, std::move(into));
    MutexLock lock(mu_);
    asked_.push_back({layer, EventSource()});
    changed_.NotifyAll();
    return asked_.back().given.event();
  }

  // The layers asked for, in that order, once there are so many.
  std::vector<int64_t> Await(size_t count) RUNAHEAD_EXCLUDES(mu_) {
    const absl::Time end = absl::Now() + testing::LongestWait();
    MutexLock lock(mu_);
    while (asked_.size() < count && absl::Now() < end) changed_.WaitFor(mu_, end - absl::Now());
    std::vector<int64_t> layers;
    for (const Asked& one : asked_) layers.push_back(one.layer);
    return layers;
  }

  void Give(size_t number) RUNAHEAD_EXCLUDES(mu_) {
    EventSource given;
    {
      MutexLock lock(mu_);
      given = asked_.at(number).given;
    }
    given.Fire(absl::OkStatus());
  }

 private:
  struct Asked {
    int64_t layer = 0;
    EventSource given;
  };
  Mutex mu_;
  CondVar changed_;
  std::vector<Asked> asked_ RUNAHEAD_GUARDED_BY(mu_);
};

class ChainExchangeTest : public StageTest {
 protected:
  // Two workers behind 50 tokens, which `give` gives; with `blocked` nothing is handed off until it says so. The whole
  // run must be the reference's.
  void ExpectBehindPrefix(int slots, bool blocked, const std::function<void(HeldPrefix&, TestChain&)>& give) {
    const std::vector<int32_t> ids = RandomIds(160, 320, 14);
    const std::vector<int64_t> bounds = {50, 150, 160};  // nearly all of the memory is for the head
    const ExpectedRun reference = Reference(ids);
    const auto prefix = std::make_shared<HeldPrefix>(reference, loaded_.model->kv_row_bytes());
    TestChain chain(loaded_, 2, 160, slots);
    if (blocked) chain.handoff().Block();
    for (int part = 0; part < 2; ++part) {
      auto job = chain.JobOf(1, 0, part, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture());
      if (part == 0) job.prefix = prefix;
      chain.member(part).stage->Start(job);
    }
    give(*prefix, chain);
    ExpectRun(AwaitWhole(loaded_, chain, 1, 0, bounds), reference);
  }
};

TEST_F(ChainExchangeTest, ThePrefixOfALayerIsAskedForBeforeThatOfTheLayerBeforeIsThere) {
  ExpectBehindPrefix(0, /*blocked=*/false, [&](HeldPrefix& prefix, TestChain&) {
    EXPECT_EQ(prefix.Await(1), std::vector<int64_t>({0})) << "nothing delays the first";
    prefix.Give(0);
    std::vector<int64_t> expected = {0, 1};
    for (int64_t layer = 2; layer < layers(); ++layer) {
      expected.push_back(layer);
      EXPECT_EQ(prefix.Await(expected.size()), expected);
      prefix.Give(static_cast<size_t>(layer) - 1);
    }
    prefix.Give(expected.size() - 1);
  });
}

TEST_F(ChainExchangeTest, ThePrefixOfALayerIsNotAskedForBeforeABufferIsFree) {
  ExpectBehindPrefix(kMinLayerSlots, /*blocked=*/true, [&](HeldPrefix& prefix, TestChain& chain) {
    for (size_t layer = 0; layer < kMinLayerSlots; ++layer) {
      ASSERT_GT(prefix.Await(layer + 1).size(), layer);
      prefix.Give(layer);
    }
    chain.member(0).trace.Await(1, kMinLayerSlots - 1, TracePoint::kLayerEnd);
    EXPECT_EQ(prefix.Await(kMinLayerSlots), std::vector<int64_t>({0, 1, 2}));
    chain.handoff().Unblock();
    EXPECT_EQ(prefix.Await(layers()), std::vector<int64_t>({0, 1, 2, 3}));
    prefix.Give(kMinLayerSlots);
  });
}

}  // namespace
}  // namespace runahead
