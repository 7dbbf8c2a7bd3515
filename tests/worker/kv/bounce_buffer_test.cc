#include "worker/kv/bounce_buffer.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/worker/kv/failing_device.h"

namespace runahead {
namespace {

constexpr int64_t kBounceRow = 8;
constexpr int64_t kBounceBlocks = 4;

class BounceBufferTest : public ::testing::Test {
 protected:
  using Room = std::unique_ptr<BounceBuffer::Room>;

  Room Request(int64_t blocks) { return bounce_->Request(0, blocks * kKvBlockTokens); }
  // Fires when the copy is done.
  Event Copy(Room room, const std::vector<BufferRef>& to) {
    EventSource done;
    bounce_->Copy(std::move(room), to, [done](const absl::Status& status) { done.Fire(status); });
    return done.event();
  }
  static absl::Status Await(const Event& event) { return event.Wait(testing::LongestWait()); }

  testing::FailingDevice device_;
  std::unique_ptr<BounceBuffer> bounce_ =
      *BounceBuffer::Create(device_, kBounceBlocks, kBounceRow, BounceBuffer::CopyBy(device_, kBounceRow));
};

TEST_F(BounceBufferTest, RoomIsForTheRowsOfTheBlocksThatARangeTouches) {
  const Room one = bounce_->Request(kKvBlockTokens - 1, kKvBlockTokens + 2);
  ASSERT_TRUE(one->given().fired());
  size_t bytes = 0;
  for (const BufferRef& ref : one->rows()) bytes += ref.size;
  EXPECT_EQ(bytes, static_cast<size_t>(3 * kBounceRow));
  const Room two = Request(2), three = Request(1);
  EXPECT_TRUE(two->given().fired()) << "the first range lies in two blocks";
  EXPECT_FALSE(three->given().fired());
}

TEST_F(BounceBufferTest, RowsReachDeviceMemoryThatIsCutElsewhere) {
  Room room = bounce_->Request(200, 600);
  std::string sent(400 * kBounceRow, '\0');
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i % 251);
  size_t written = 0;
  for (const BufferRef& ref : room->rows()) {
    std::memcpy(ref.data(), sent.data() + written, ref.size);
    written += ref.size;
  }
  ASSERT_EQ(written, sent.size());
  const BufferRef memory = device_.Room(2 * sent.size());
  const std::vector<BufferRef> to = {memory.Slice(sent.size(), 125 * kBounceRow), memory.Slice(0, kBounceRow),
                                     memory.Slice(kBounceRow + 7, 274 * kBounceRow)};
  ASSERT_EQ(Await(Copy(std::move(room), to)), absl::OkStatus());
  std::string arrived;
  for (const BufferRef& ref : to) arrived += device_.Peek(ref);
  EXPECT_EQ(arrived, sent);
}

TEST_F(BounceBufferTest, RoomIsGivenInTheOrderOfAsking) {
  Room all = Request(4), large = Request(3), small = Request(1), last = Request(1);
  EXPECT_TRUE(all->given().fired());
  all = nullptr;
  EXPECT_TRUE(large->given().fired() && small->given().fired());
  EXPECT_FALSE(last->given().fired());
  Room behind = Request(4), tiny = Request(1);
  small = nullptr;
  EXPECT_TRUE(last->given().fired());
  large = nullptr;
  EXPECT_FALSE(behind->given().fired());
  EXPECT_FALSE(tiny->given().fired()) << "it does not overtake, or what is large would never get room";
  last = nullptr;
  EXPECT_TRUE(behind->given().fired());
}

TEST_F(BounceBufferTest, WhoNoLongerWaitsIsInNobodysWay) {
  const Room some = Request(2);
  Room large = Request(4);
  const Room small = Request(2);
  EXPECT_FALSE(small->given().fired());
  large = nullptr;
  EXPECT_TRUE(small->given().fired());
}

TEST_F(BounceBufferTest, RoomIsHeldUntilItsCopyHasRun) {
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event copied = Copy(Request(4), {device_.Room(4 * kKvBlockTokens * kBounceRow)});
  const Room next = Request(1);
  device_.AwaitCopyEnqueued();
  EXPECT_FALSE(next->given().fired() || copied.fired());
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(copied), absl::OkStatus());
  EXPECT_EQ(next->given().status(), absl::OkStatus()) << "before its owner hears of it";
}

TEST_F(BounceBufferTest, AFailedCopyGivesItsRoomBackAndSaysWhy) {
  const std::vector<BufferRef> to = {device_.Room(4 * kKvBlockTokens * kBounceRow)};
  device_.RefuseCopies(1);
  EXPECT_EQ(Await(Copy(Request(4), to)).code(), absl::StatusCode::kInternal);
  device_.FailEvents(1);
  EXPECT_EQ(Await(Copy(Request(4), to)).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Request(4)->given().fired());
}

TEST_F(BounceBufferTest, RoomOfWhichACopyWasRefusedIsHeldUntilThoseBeforeItHaveRun) {
  EventSource gate;
  device_.HoldCopies(gate.event());
  const BufferRef memory = device_.Room(4 * kKvBlockTokens * kBounceRow);
  device_.RefuseCopies(1, /*taken=*/1);
  const Event copied =
      Copy(Request(4), {memory.Slice(0, kBounceRow), memory.Slice(kBounceRow, memory.size - kBounceRow)});
  const Room next = Request(1);
  EXPECT_FALSE(next->given().fired() || copied.fired()) << "the first row is still to be read";
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Await(copied).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(next->given().fired());
  EXPECT_EQ(device_.copies(), 1);
}

TEST_F(BounceBufferTest, EndsWhenItsCopiesHaveRun) {
  EventSource gate;
  device_.HoldCopies(gate.event());
  const Event copied = Copy(Request(4), {device_.Room(4 * kKvBlockTokens * kBounceRow)});
  EventSource ended;
  std::thread ending([this, ended] {
    bounce_.reset();
    ended.Fire(absl::OkStatus());
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended.event().Wait(absl::Milliseconds(100))));
  gate.Fire(absl::OkStatus());
  ending.join();
  EXPECT_EQ(copied.status(), absl::OkStatus());
}

// As receivers do whose peers are gone: each gives up its room on the event that gives it, and so on.
TEST_F(BounceBufferTest, ManyWhoGiveUpAtOnceDoNotPileUpOnTheStack) {
  Room first = Request(4);
  std::vector<Room> rooms(100'000);
  int given = 0;
  for (Room& room : rooms) {
    room = Request(4);
    room->given().OnFire([&room, &given](const absl::Status&) {
      ++given;
      room = nullptr;
    });
  }
  first = nullptr;
  EXPECT_EQ(given, 100'000);
  EXPECT_TRUE(Request(4)->given().fired());
}

}  // namespace
}  // namespace runahead
