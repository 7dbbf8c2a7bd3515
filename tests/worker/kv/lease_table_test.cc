#include "worker/kv/lease_table.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LeaseTableTest : public ::testing::Test {
 protected:
  LeaseId Add(std::vector<int32_t> blocks = {4, 5}) {
    return table_.Add(std::make_unique<KvLease>(10, 20, std::move(blocks), Arrival(1, 10)));
  }
  bool Lives(const LeaseId& id) { return table_.Find(id).ok(); }

  testing::FakeClock clock_;
  LeaseTable table_{/*incarnation=*/99, kLeaseLife, clock_};
};

TEST_F(LeaseTableTest, FindsOnlyWhatLivesHere) {
  const LeaseId id = Add();
  EXPECT_EQ((*table_.Find(id))->total_tokens, 20);
  EXPECT_EQ(id.incarnation, 99u);
  for (const LeaseId& other : {LeaseId{98, id.number, 0}, LeaseId{99, id.number + 1, 0}, LeaseId{99, id.number, 1}}) {
    EXPECT_EQ(table_.Find(other).status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(table_.Release(other).has_value());
  }
  EXPECT_EQ(table_.living(), 1);
}

TEST_F(LeaseTableTest, AReleasedLeaseLeavesItsEventAndItsBlocks) {
  const LeaseId id = Add();
  const Event completed = (*table_.Find(id))->completed.event();
  const std::optional<LeaseTable::Ending> ending = table_.Release(id);
  ASSERT_TRUE(ending.has_value());
  EXPECT_THAT(ending->blocks, ElementsAre(4, 5));
  EXPECT_FALSE(completed.fired()) << "that is the owner's to do";
  EXPECT_TRUE(ending->completed.Fire(absl::OkStatus()));
  EXPECT_EQ(completed.status(), absl::OkStatus());
  EXPECT_FALSE(table_.Release(id).has_value());
  EXPECT_TRUE(table_.empty());
}

TEST_F(LeaseTableTest, BlocksReturnWithTheLastPin) {
  const LeaseId id = Add();
  KvLease* const lease = *table_.Find(id);
  lease->writes = 2;
  lease->open = true;
  EXPECT_THAT(table_.Release(id)->blocks, IsEmpty());
  EXPECT_EQ(table_.living(), 0);
  EXPECT_THAT(table_.EndWrite(id.number), IsEmpty());
  EXPECT_THAT(table_.Close(id.number), IsEmpty());
  EXPECT_THAT(table_.EndWrite(id.number), ElementsAre(4, 5));
  EXPECT_TRUE(table_.empty());
}

TEST_F(LeaseTableTest, TheEndOfItsDecodeEndsALease) {
  const LeaseId id = Add();
  (*table_.Find(id))->open = true;
  EXPECT_THAT(table_.Close(id.number), ElementsAre(4, 5));
  EXPECT_EQ(table_.living(), 0);
  EXPECT_TRUE(table_.empty());
}

TEST_F(LeaseTableTest, TheEndOfAWriteEndsNoLease) {
  const LeaseId id = Add();
  (*table_.Find(id))->writes = 1;
  EXPECT_THAT(table_.EndWrite(id.number), IsEmpty());
  EXPECT_TRUE(Lives(id));
}

TEST_F(LeaseTableTest, ALeaseIsOverAfterItsLifeUnlessItIsRenewed) {
  const LeaseId renewed = Add(), over = Add({1});
  clock_.Advance(kLeaseLife);
  EXPECT_TRUE(Lives(over));
  table_.Renew(*table_.Find(renewed).value());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(Lives(renewed));
  EXPECT_FALSE(Lives(over)) << "though nobody has reaped it";
  EXPECT_EQ(table_.living(), 2);
  const std::vector<LeaseTable::Ending> endings = table_.ReapExpired();
  ASSERT_EQ(endings.size(), 1u);
  EXPECT_THAT(endings[0].blocks, ElementsAre(1));
  EXPECT_EQ(table_.living(), 1);
  EXPECT_EQ(table_.expired(), 1);
}

TEST_F(LeaseTableTest, WhatHoldsALeaseKeepsItFromExpiring) {
  const LeaseId written = Add(), decoded = Add(), awaited = Add();
  (*table_.Find(written))->writes = 1;
  (*table_.Find(decoded))->open = true;
  (*table_.Find(awaited))->awaited = true;
  clock_.Advance(absl::Hours(1));
  EXPECT_THAT(table_.ReapExpired(), IsEmpty());
  EXPECT_TRUE(Lives(written) && Lives(decoded) && Lives(awaited));
}

TEST_F(LeaseTableTest, AnEpochEndsAllLeasesOfBefore) {
  const LeaseId idle = Add({1}), pinned = Add({2});
  (*table_.Find(pinned))->writes = 1;
  std::vector<int32_t> returned;
  for (const LeaseTable::Ending& ending : table_.BeginEpoch(3)) {
    returned.insert(returned.end(), ending.blocks.begin(), ending.blocks.end());
  }
  EXPECT_THAT(returned, ElementsAre(1));
  EXPECT_FALSE(Lives(idle) || Lives(pinned));
  EXPECT_THAT(table_.EndWrite(pinned.number), ElementsAre(2)) << "what pins it knows its number";
  EXPECT_EQ(Add().epoch, 3u);
  EXPECT_EQ(table_.epoch(), 3u);
}

}  // namespace
}  // namespace runahead
