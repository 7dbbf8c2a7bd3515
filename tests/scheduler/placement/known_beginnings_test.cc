#include "scheduler/placement/known_beginnings.h"

#include <numeric>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/placement/beginning_hash.h"

namespace runahead {
namespace {

constexpr int64_t kRoom = 1 << 20;
constexpr KnownBeginnings::Life kOne{1, 1}, kTwo{2, 1};

// So many ids that no sequence of another `first` begins with.
std::vector<int32_t> Ids(int tokens, int first = 0) {
  std::vector<int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(KnownBeginnings, ArePerWorkerAndToTheToken) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(700), 1);
  EXPECT_EQ(known.Known(kOne, "", Ids(900)), 700);
  EXPECT_EQ(known.Known(kOne, "", Join(Ids(601), Ids(50, 5000))), 601);
  EXPECT_EQ(known.Known(kOne, "", Ids(300)), 300);
  EXPECT_EQ(known.Known(kTwo, "", Ids(900)), 0);
  EXPECT_EQ(known.Known(kOne, "", Ids(900, 1)), 0);
  EXPECT_EQ(known.tokens(), 700);
}

TEST(KnownBeginnings, OfAnotherSaltAreUnknown) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "alice", Ids(700), 1);
  EXPECT_EQ(known.Known(kOne, "alice", Ids(700)), 700);
  EXPECT_EQ(known.Known(kOne, "bob", Ids(700)), 0);
  EXPECT_EQ(known.Known(kOne, "", Ids(700)), 0);
}

TEST(KnownBeginnings, ShortOnesAreNone) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(31), 1);
  EXPECT_EQ(known.tokens(), 0);
  known.Learn(kOne, kRoom, "", Ids(32), 1);
  EXPECT_EQ(known.Known(kOne, "", Ids(100)), 32);
  EXPECT_EQ(known.Known(kOne, "", Join(Ids(31), Ids(5, 900))), 0);
}

TEST(KnownBeginnings, AnotherLifeOfAWorkerKnowsNothing) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(100), 1);
  EXPECT_EQ(known.Known({1, 2}, "", Ids(100)), 0) << "epoch";
  EXPECT_EQ(known.Known({3, 1}, "", Ids(100)), 0) << "incarnation";
}

TEST(KnownBeginnings, OfWorkersThatAreNotThereAreForgotten) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(100), 1);
  known.Learn(kTwo, kRoom, "", Ids(200), 1);
  known.Retain({kTwo});
  EXPECT_EQ(known.Known(kOne, "", Ids(100)), 0);
  EXPECT_EQ(known.Known(kTwo, "", Ids(200)), 200);
  EXPECT_EQ(known.tokens(), 200);
}

TEST(KnownBeginnings, WhatIsGoneIsLessThanWasAskedForUntilItIsThereAgain) {
  for (const int64_t least : {32, 256, 257, 600, 700}) {
    KnownBeginnings known;
    known.Learn(kOne, kRoom, "", Ids(700), 1);
    known.Learn(kOne, kRoom, "", Ids(700, 5000), 1);
    known.Gone(kOne, "", Ids(900), least, 1);
    const int64_t left = known.Known(kOne, "", Ids(900));
    EXPECT_LT(left, least);
    EXPECT_GE(left, least - 256);
    EXPECT_EQ(known.Known(kOne, "", Ids(700, 5000)), 700) << "that is another one";
    known.Learn(kOne, kRoom, "", Ids(700), 1);
    EXPECT_EQ(known.Known(kOne, "", Ids(900)), 700);
  }
}

// A system prompt that is shorter than a node of the index: each conversation has a node of its own.
TEST(KnownBeginnings, WhatIsGoneOfOneConversationIsThereOfAnotherThatBeginsAlike) {
  for (const int common : {200, 300}) {
    KnownBeginnings known;
    const auto conversation = [&](int which) { return Join(Ids(common), Ids(400, 1000 * which)); };
    for (const int which : {1, 2}) known.Learn(kOne, kRoom, "", conversation(which), 1);
    known.Gone(kOne, "", conversation(1), common + 100, 1);
    EXPECT_EQ(known.Known(kOne, "", conversation(2)), common + 400) << common;
    EXPECT_EQ(known.Known(kOne, "", conversation(3)), common) << common;
    known.Gone(kOne, "", conversation(3), common, 1);
    EXPECT_LT(known.Known(kOne, "", conversation(2)), common) << "of none, where one that begins alike lacks it";
    known.Learn(kOne, kRoom, "", conversation(9), 1);
    EXPECT_EQ(known.Known(kOne, "", conversation(5)), common) << common;
  }
}

// The lesson of 5 may be newer than an answer to a question of 4.
TEST(KnownBeginnings, WhatWasLearnedSinceTheWorkerWasAskedIsNotGone) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Join(Ids(500), Ids(100, 5000)), 3);
  known.Learn(kOne, kRoom, "", Ids(700), 4);
  known.Learn(kOne, kRoom, "", Ids(500), 5);
  known.Gone(kOne, "", Ids(900), 300, 4);
  EXPECT_EQ(known.Known(kOne, "", Ids(900)), 512) << "of a chunk that is known again, all of it";
  EXPECT_EQ(known.Known(kOne, "", Join(Ids(500), Ids(100, 5000))), 500);
  EXPECT_EQ(known.tokens(), 512);
  known.Gone(kOne, "", Ids(900), 300, 5);
  EXPECT_EQ(known.Known(kOne, "", Ids(900)), 256);
}

TEST(KnownBeginnings, GoneOfWhatNobodyHasChangesNothing) {
  KnownBeginnings known;
  known.Gone(kOne, "", Ids(100), 50, 1);
  known.Learn(kOne, kRoom, "", Ids(100), 1);
  known.Gone(kOne, "", Ids(100, 900), 50, 1);
  known.Gone(kOne, "", Ids(600), 500, 1);
  EXPECT_EQ(known.Known(kOne, "", Ids(100)), 100);
}

uint64_t HashOf(const std::vector<int32_t>& ids, absl::string_view salt = "") {
  return BeginningHash(BeginningHash(salt), ids);
}

TEST(KnownBeginnings, OfWhatIsEvictedTheRestIsKnown) {
  KnownBeginnings known;
  const std::vector<int32_t> other = Join(Ids(256), Ids(100, 5000));
  known.Learn(kOne, kRoom, "", Ids(700), 1);
  known.Learn(kOne, kRoom, "", other, 2);
  known.Learn(kTwo, kRoom, "", Ids(700), 3);
  known.Learn(kOne, kRoom, "alice", Ids(700), 4);
  known.Evicted(kOne, {HashOf(Ids(700))}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(700)), 512);
  known.Evicted(kOne, {HashOf(Ids(512))}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(700)), 256);
  EXPECT_EQ(known.Known(kOne, "", other), 356) << "another conversation that begins so";
  EXPECT_EQ(known.Known(kTwo, "", Ids(700)), 700) << "another worker";
  EXPECT_EQ(known.Known(kOne, "alice", Ids(700)), 700) << "another salt";
  known.Evicted(kOne, {HashOf(Ids(256), "alice")}, 9);
  EXPECT_EQ(known.Known(kOne, "alice", Ids(700)), 0) << "and all behind it";
  EXPECT_EQ(known.SizeOf(kOne, "alice").bytes, 0);
}

// A worker tells what went from the end on; one that is told of a beginning alone takes its end for gone, too.
TEST(KnownBeginnings, WithABeginningAllBehindItIsEvicted) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(700), 1);
  known.Learn(kOne, kRoom, "", Join(Ids(256), Ids(100, 5000)), 2);
  known.Evicted(kOne, {HashOf(Ids(256)), HashOf(Ids(700)), HashOf(Ids(256))}, 2);
  EXPECT_EQ(known.tokens(), 0);
  EXPECT_EQ(known.SizeOfAll().bytes, 0);
}

TEST(KnownBeginnings, WhatWasLearnedSinceThePingIsNotEvicted) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "", Ids(700), 4);
  known.Learn(kOne, kRoom, "", Ids(512), 5);
  known.Evicted(kOne, {HashOf(Ids(700)), HashOf(Ids(512)), HashOf(Ids(256))}, 4);
  EXPECT_EQ(known.Known(kOne, "", Ids(700)), 512);
  known.Evicted(kOne, {HashOf(Ids(512))}, 5);
  EXPECT_EQ(known.Known(kOne, "", Ids(700)), 256);
}

TEST(KnownBeginnings, EvictionsOfWhatIsNotKnownChangeNothing) {
  KnownBeginnings known;
  known.Evicted(kOne, {HashOf(Ids(256))}, 9);
  known.Learn(kOne, kRoom, "", Ids(300), 1);
  known.Evicted(kOne, {1, 0, HashOf(Ids(299)), HashOf(Ids(300), "alice")}, 9);
  known.Evicted(kTwo, {HashOf(Ids(300))}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(300)), 300);
}

// However it went from the index: what is evicted afterwards is looked for in vain, or found where it is anew.
TEST(KnownBeginnings, AnEvictionFindsWhatIsThereNowAndNothingElse) {
  KnownBeginnings known;
  const std::vector<uint64_t> all = {HashOf(Ids(300)), HashOf(Ids(256)), HashOf(Ids(300, 9000)), HashOf(Ids(256, 9000)),
                                     HashOf(Ids(300), "alice")};
  const auto learn = [&](int64_t room) { known.Learn(kOne, room, "", Ids(300), 1); };
  learn(kRoom);
  known.Learn(kOne, 300, "", Ids(300, 9000), 1);  // the older one makes room
  known.Evicted(kOne, {all[0], all[1]}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(300, 9000)), 300);
  known.Gone(kOne, "", Ids(300, 9000), 290, 9);
  known.Evicted(kOne, {all[2]}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(300, 9000)), 256);
  known.Learn(kOne, kRoom, "alice", Ids(300), 1);
  known.Forget("alice");
  known.Evicted(kOne, {all[4]}, 9);
  learn(kRoom);
  known.Learn(kOne, kRoom, "", Ids(310), 1);  // its last chunk takes the other's place
  known.Evicted(kOne, {all[0]}, 9);
  EXPECT_EQ(known.Known(kOne, "", Ids(310)), 310);
  known.Forget(std::nullopt);
  known.Evicted(kOne, all, 9);
  EXPECT_EQ(known.tokens(), 0);
  learn(kRoom);
  known.Evicted(kOne, all, 9);
  EXPECT_EQ(known.tokens(), 0);
}

TEST(KnownBeginnings, NoWorkerIsSaidToHaveMoreThanItCanHold) {
  KnownBeginnings known;
  for (int i = 0; i < 8; ++i) known.Learn(kOne, 1000, "", Ids(256, 1000 * i), 1);
  EXPECT_LE(known.tokens(), 1000);
  EXPECT_EQ(known.Known(kOne, "", Ids(256)), 0) << "the oldest";
  EXPECT_EQ(known.Known(kOne, "", Ids(256, 7000)), 256) << "the newest";
}

TEST(KnownBeginnings, AllTogetherStayWithinTheirBytes) {
  KnownBeginnings known(20 * (576 + 256 * 4));
  for (int i = 0; i < 30; ++i) known.Learn(kOne, kRoom, "", Ids(256, 1000 * i), 1);
  known.Learn(kTwo, kRoom, "", Ids(256), 1);
  EXPECT_EQ(known.tokens(), 20 * 256);
  EXPECT_EQ(known.Known(kTwo, "", Ids(256)), 256) << "who has most gives way";
  EXPECT_EQ(known.Known(kOne, "", Ids(256, 29000)), 256);
  EXPECT_EQ(known.Known(kOne, "", Ids(256)), 0);
}

TEST(KnownBeginnings, AreForgottenOfOneSaltOrOfAll) {
  KnownBeginnings known;
  known.Learn(kOne, kRoom, "alice", Ids(300), 1);
  known.Learn(kOne, kRoom, "bob", Ids(400), 1);
  known.Learn(kTwo, kRoom, "alice", Ids(500), 1);
  EXPECT_EQ(known.SizeOf(kOne, "alice").tokens, 300);
  EXPECT_EQ(known.SizeOf(kOne).tokens, 700);
  EXPECT_EQ(known.SizeOfAll("alice").tokens, 800);
  EXPECT_EQ(known.SizeOfAll().tokens, 1200);
  EXPECT_EQ(known.SizeOf({9, 9}).tokens, 0);
  EXPECT_EQ(known.SizeOfAll("alice").bytes + known.SizeOfAll("bob").bytes, known.SizeOfAll().bytes);
  EXPECT_GE(known.SizeOfAll("bob").bytes, 400 * static_cast<int64_t>(sizeof(int32_t)));
  known.Forget("alice");
  EXPECT_EQ(known.Known(kOne, "alice", Ids(300)), 0);
  EXPECT_EQ(known.Known(kTwo, "alice", Ids(500)), 0);
  EXPECT_EQ(known.Known(kOne, "bob", Ids(400)), 400);
  known.Learn(kOne, kRoom, "alice", Ids(300), 1);
  EXPECT_EQ(known.Known(kOne, "alice", Ids(300)), 300) << "what comes later is known";
  known.Forget(std::nullopt);
  EXPECT_EQ(known.Known(kOne, "alice", Ids(300)) + known.Known(kOne, "bob", Ids(400)), 0);
  EXPECT_EQ(known.SizeOfAll().tokens + known.SizeOfAll().bytes, 0);
}

}  // namespace
}  // namespace runahead
