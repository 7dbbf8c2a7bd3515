#include "worker/handoff/decode_paths.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"

namespace runahead {
namespace {

// Ends each push when the test says how.
class HeldSender final : public HandoffSender {
 public:
  Event Push(const PeerId&, const Slice&, ConstBufferRef, const Event&) override {
    pushes.emplace_back();
    return pushes.back().event();
  }
  void Cancel(const LeaseId&) override {}

  std::vector<EventSource> pushes;
};

// The same of loads.
class HeldLoader final : public PrefixLoader {
 public:
  Event Load(const PeerId&, const Slice&, BufferRef) override {
    loads.emplace_back();
    return loads.back().event();
  }
  void Drop(const LeaseId&) override {}

  std::vector<EventSource> loads;
};

class DecodePathsTest : public ::testing::Test {
 protected:
  // How many pushes were made in all, once what changed was taken a long time later.
  size_t PushesAnHourLater() {
    paths_.TakeChanges(MonotonicNow() + absl::Hours(1));
    return sender_->pushes.size();
  }

  HeldSender* sender_ = new HeldSender;
  HeldLoader* loader_ = new HeldLoader;
  DecodePaths paths_{std::unique_ptr<HandoffSender>(sender_), std::unique_ptr<PrefixLoader>(loader_)};
  const PeerId decode_{"d", 7, {}, 2};
};

TEST_F(DecodePathsTest, OneThatCannotBeReachedIsToldOfAndAskedUntilItAnswers) {
  paths_.Push(decode_, {}, {}, Event());
  sender_->pushes[0].Fire(absl::UnavailableError("gone"));
  std::vector<DecodePaths::State> changes = paths_.TakeChanges(MonotonicNow());
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].decode, decode_);
  EXPECT_FALSE(changes[0].status.ok());
  ASSERT_EQ(PushesAnHourLater(), 2u);
  sender_->pushes[1].Fire(absl::NotFoundError("no such lease"));
  changes = paths_.TakeChanges(MonotonicNow());
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].status.ok());
  EXPECT_EQ(PushesAnHourLater(), 2u);
}

TEST_F(DecodePathsTest, OneWhosePrefixCannotBeReachedIsToldOfToo) {
  for (int i = 0; i < 3; ++i) paths_.Load(decode_, {}, {});
  loader_->loads[0].Fire(absl::CancelledError("dropped"));
  loader_->loads[1].Fire(absl::NotFoundError("no such lease"));
  EXPECT_TRUE(paths_.TakeChanges(MonotonicNow()).empty());
  loader_->loads[2].Fire(absl::UnavailableError("gone"));
  const std::vector<DecodePaths::State> changes = paths_.TakeChanges(MonotonicNow());
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_FALSE(changes[0].status.ok());
  EXPECT_EQ(PushesAnHourLater(), 1u) << "and asked, with a slice";
}

TEST_F(DecodePathsTest, OneThatIsGoneForGoodIsNeverAskedAgain) {
  for (int i = 0; i < 2; ++i) paths_.Push(decode_, {}, {}, Event());
  sender_->pushes[0].Fire(absl::UnavailableError("gone"));
  paths_.Forget(decode_.incarnation, decode_.epoch);
  sender_->pushes[1].Fire(absl::UnavailableError("gone"));  // later than the news of its end
  EXPECT_TRUE(paths_.TakeChanges(MonotonicNow()).empty());
  EXPECT_EQ(PushesAnHourLater(), 2u);
  PeerId next = decode_;
  ++next.epoch;
  paths_.Push(next, {}, {}, Event());
  sender_->pushes[2].Fire(absl::UnavailableError("gone"));
  EXPECT_EQ(paths_.TakeChanges(MonotonicNow()).size(), 1u) << "another life is another worker";
}

}  // namespace
}  // namespace runahead
