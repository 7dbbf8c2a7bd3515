#include "worker/link/message/message_edge.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/random.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/message/message_world.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message_engine.h"

namespace runahead {
namespace {

using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::MessageWorld;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

INSTANTIATE_TEST_SUITE_P(Tcp, EdgeContract,
                         ::testing::Values([] { return std::unique_ptr<EdgeWorld>(new MessageWorld); }));

TEST(MessageEdge, NamesTheTransportItTook) {
  MessageWorld world;
  const auto a = *world.factory(0).Open(world.factory(1).self());
  const auto b = *world.factory(1).Open(world.factory(0).self());
  a->Send({1, 0, 0}, Pattern(100'000, 1), Event());
  ASSERT_TRUE(b->Recv({1, 0, 0}, Room(100'000)).Wait(testing::LongestWait()).ok());
  EXPECT_EQ(world.engine(0).Transport(world.factory(1).self()), absl::StrCat("tcp ", world.factory(1).self().address));
  EXPECT_EQ(world.engine(0).Transport({"127.0.0.1:1", 1}), "");
}

TEST(MessageEdge, ADamagedAddressIsUnavailableAndHarmsNothing) {
  MessageWorld world;
  for (const std::string& address :
       {std::string(), std::string("x"), std::string(300, 'y'), world.factory(1).self().address + "z"}) {
    const auto edge = world.factory(0).Open({address, RandomBits64()});
    if (!edge.ok()) continue;
    EXPECT_EQ((*edge)->Recv({1, 0, 0}, Room(1)).Wait(testing::LongestWait()).code(), absl::StatusCode::kUnavailable);
  }
  const auto a = *world.factory(0).Open(world.factory(1).self());
  const auto b = *world.factory(1).Open(world.factory(0).self());
  a->Send({1, 0, 0}, Pattern(10, 1), Event());
  EXPECT_TRUE(b->Recv({1, 0, 0}, Room(10)).Wait(testing::LongestWait()).ok());
}

TEST(MessageEdge, MessagesForAnotherIncarnationAreIgnored) {
  MessageWorld world;
  const PeerId b = world.factory(1).self();
  // What `a` believes to be at b's address is a former life of it.
  const auto stale = *world.factory(0).Open({b.address, b.incarnation + 1});
  const Event small = stale->Send({1, 0, 0}, Pattern(10, 1), Event());
  const Event large = stale->Send({1, 1, 0}, Pattern(100'000, 1), Event());
  // Both were discarded there, or the connection was refused: given back without ever having been asked for.
  EXPECT_NE(small.Wait(testing::LongestWait()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(large.Wait(testing::LongestWait()).code(), absl::StatusCode::kDeadlineExceeded);
  const auto back = *world.factory(1).Open(world.factory(0).self());
  const auto edge = *world.factory(0).Open(b);
  const Event got = back->Recv({1, 0, 0}, Room(20));
  edge->Send({1, 0, 0}, Pattern(20, 2), Event());
  EXPECT_TRUE(got.Wait(testing::LongestWait()).ok()) << "a frame of the former life would have had another size";
}

TEST(MessageEdge, ABrokenEdgeIsMadeAnewInItsNextGenerationAndTheOldOneStaysDead) {
  MessageWorld world;
  PeerId a = world.factory(0).self(), b = world.factory(1).self();
  a.generation = b.generation = 1;
  const auto old_there = *world.factory(0).Open(b), old_back = *world.factory(1).Open(a);
  const Event arrived = old_back->Recv({1, 0, 0}, Room(10));
  old_there->Send({1, 0, 0}, Pattern(10, 1), Event());
  EXPECT_TRUE(arrived.Wait(testing::LongestWait()).ok());
  EXPECT_TRUE(old_back->Opened()) << "said before the frame";
  // Hand-off's connection is another one, and lives on.
  EventSource died;
  world.engine(0).Connect(world.factory(1).self(), [died](const absl::Status& why) { died.Fire(why); });
  const Event lost = old_back->Recv({2, 0, 0}, Room(10));
  world.engine(0).Close(b.key());
  EXPECT_EQ(lost.Wait(testing::LongestWait()).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(died.event().fired());
  world.factory(0).Close(b);
  world.factory(1).Close(a);
  EXPECT_FALSE(world.factory(0).Open(b).ok()) << "a generation that was closed";
  // One end is ahead of the other: what it sends waits.
  a.generation = b.generation = 2;
  const auto there = *world.factory(0).Open(b);
  const Event sent = there->Send({3, 0, 0}, Pattern(10, 3), Event());
  const auto back = *world.factory(1).Open(a);
  const BufferRef into = Room(10);
  EXPECT_TRUE(back->Recv({3, 0, 0}, into).Wait(testing::LongestWait()).ok());
  EXPECT_TRUE(sent.Wait(testing::LongestWait()).ok());
  EXPECT_EQ(testing::Bytes(into), testing::Bytes(Pattern(10, 3)));
}

TEST(MessageEdge, AnEngineThatStoppedEndsAll) {
  MessageWorld world;
  const auto a = *world.factory(0).Open(world.factory(1).self());
  const auto b = *world.factory(1).Open(world.factory(0).self());
  const Event here = a->Recv({1, 0, 0}, Room(10)), there = b->Recv({1, 0, 0}, Room(10));
  a->Send({2, 0, 0}, Pattern(10, 1), Event());
  EXPECT_TRUE(b->Recv({2, 0, 0}, Room(10)).Wait(testing::LongestWait()).ok());
  world.engine(0).Stop();
  EXPECT_EQ(here.Wait(testing::LongestWait()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(there.Wait(testing::LongestWait()).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace runahead
