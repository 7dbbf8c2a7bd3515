#include "worker/prefill/transfer_times.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

// A clock that is moved by hand; a pass begins at 0.
absl::Time At(int64_t seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// `times` has so many seconds of transfer, so many of them hidden.
void ExpectSeconds(const TransferTimes& times, int64_t transfer, int64_t hidden) {
  EXPECT_EQ(times.Transfer(), absl::Seconds(transfer));
  EXPECT_EQ(times.Hidden(), absl::Seconds(hidden));
}

TEST(TransferTimes, WithoutFramesThereIsNoTransfer) {
  TransferTimes times;
  ExpectSeconds(times, 0, 0);
  times.AddIdle(At(1), At(5));
  ExpectSeconds(times, 0, 0);
}

TEST(TransferTimes, WhatComesDuringComputeIsHidden) {
  TransferTimes times;  // computes from 0 to 10, and waits for nothing
  times.AddFrame({At(4), At(7)});
  ExpectSeconds(times, 3, 3);
}

// Posted at 0; the predecessor computes until 100; the own projection is over at 10, so this worker waits from then.
TEST(TransferTimes, ThePredecessorsComputeCountsNeitherAsTransferNorAsHidden) {
  TransferTimes times;
  times.AddFrame({At(100), At(102)});
  times.AddIdle(At(10), At(102));
  ExpectSeconds(times, 2, 0);
}

TEST(TransferTimes, AFrameThatIsHalfHereWhenComputeEndsIsHalfHidden) {
  TransferTimes times;
  times.AddFrame({At(6), At(14)});
  times.AddIdle(At(10), At(15));  // the stage's thread noticed a little later
  ExpectSeconds(times, 8, 4);
}

TEST(TransferTimes, FramesSideBySideCountOnce) {
  TransferTimes times;  // three earlier parts
  times.AddFrame({At(5), At(9)});
  times.AddFrame({At(1), At(3)});
  times.AddFrame({At(2), At(6)});
  times.AddIdle(At(8), At(9));
  ExpectSeconds(times, 8, 7);
}

TEST(TransferTimes, LayersAddUp) {
  TransferTimes times;
  times.AddFrame({At(1), At(3)});  // hidden
  times.AddFrame({At(20), At(24)});
  times.AddIdle(At(12), At(24));  // exposed
  times.AddFrame({At(30), At(36)});
  times.AddIdle(At(34), At(36));  // two of six exposed
  times.AddIdle(At(50), At(60));  // for a frame that took no time
  times.AddFrame({At(60), At(60)});
  ExpectSeconds(times, 12, 6);
}

TEST(TransferTimes, OneFrameOverSeveralWaits) {
  TransferTimes times;  // one that came while two others were waited for
  times.AddFrame({At(0), At(10)});
  times.AddIdle(At(7), At(9));
  times.AddIdle(At(2), At(4));
  times.AddIdle(At(3), At(5));
  ExpectSeconds(times, 10, 5);
}

}  // namespace
}  // namespace runahead
