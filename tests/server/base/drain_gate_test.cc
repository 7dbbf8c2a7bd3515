#include "server/base/drain_gate.h"

#include <thread>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(DrainGate, CountsWhatIsInside) {
  DrainGate gate;
  EXPECT_TRUE(gate.WaitEmpty(absl::ZeroDuration()));
  auto first = gate.Enter();
  ASSERT_TRUE(first.ok());
  DrainGate::Pass moved = *std::move(first);
  EXPECT_EQ(gate.inside(), 1);
  {
    auto second = gate.Enter();
    EXPECT_EQ(gate.inside(), 2);
    moved = *std::move(second);  // gives the first place back
    EXPECT_EQ(gate.inside(), 1);
  }
  EXPECT_FALSE(gate.WaitEmpty(absl::ZeroDuration()));
  moved = {};
  EXPECT_TRUE(gate.WaitEmpty(absl::ZeroDuration()));
}

TEST(DrainGate, ClosedLetsNobodyInButKeepsWhoIsInside) {
  DrainGate gate;
  auto pass = gate.Enter();
  gate.Close();
  EXPECT_TRUE(gate.closed());
  EXPECT_EQ(gate.Enter().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(gate.inside(), 1);
}

TEST(DrainGate, WaitEmptyEndsWhenTheLastLeaves) {
  DrainGate gate;
  auto pass = gate.Enter();
  gate.Close();
  std::thread work([pass = *std::move(pass)]() mutable { pass = {}; });
  EXPECT_TRUE(gate.WaitEmpty(absl::InfiniteDuration()));
  work.join();
}

}  // namespace
}  // namespace runahead
