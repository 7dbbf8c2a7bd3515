#include "server/router/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MembershipTest, NamesComeIntoVacantSeatsAndKeepThem) {
  Membership members({4, 5, 6});
  EXPECT_THAT(members.Named({"b:1", "a:1"}).occupied, ElementsAre(4, 5));
  EXPECT_EQ(members.address(4), "a:1");
  EXPECT_EQ(members.address(5), "b:1");
  // Another comes, whatever its order among the names.
  const Membership::Changes changes = members.Named({"0:1", "a:1", "b:1"});
  EXPECT_THAT(changes.occupied, ElementsAre(6));
  EXPECT_THAT(changes.kept, IsEmpty());
  EXPECT_EQ(members.address(4), "a:1");
  EXPECT_EQ(members.address(6), "0:1");
  EXPECT_THAT(members.retired(), IsEmpty());
}

TEST(MembershipTest, AnEmptyAnswerChangesNothing) {
  Membership members({0, 1});
  members.Named({"a:1"});
  EXPECT_THAT(members.Named({}).occupied, IsEmpty());
  EXPECT_THAT(members.retired(), IsEmpty());
  EXPECT_EQ(members.address(0), "a:1");
}

TEST(MembershipTest, ANameThatIsGoneKeepsItsSeatUntilItIsVacated) {
  Membership members({0, 1});
  members.Named({"a:1", "b:1"});
  EXPECT_THAT(members.Named({"b:1", "c:1"}).left_out, ElementsAre("c:1")) << "a still drains";
  EXPECT_THAT(members.retired(), ElementsAre(0));
  EXPECT_EQ(members.address(0), "a:1");
  members.Vacate(0);
  EXPECT_THAT(members.retired(), IsEmpty());
  const Membership::Changes changes = members.Named({"b:1", "c:1"});
  EXPECT_THAT(changes.occupied, ElementsAre(0));
  EXPECT_THAT(changes.left_out, IsEmpty());
  EXPECT_EQ(members.address(0), "c:1");
}

TEST(MembershipTest, ANameThatComesBackIsKept) {
  Membership members({0, 1});
  members.Named({"a:1", "b:1"});
  members.Named({"b:1"});
  const Membership::Changes changes = members.Named({"a:1", "b:1"});
  EXPECT_THAT(changes.kept, ElementsAre(0));
  EXPECT_THAT(changes.occupied, IsEmpty());
  EXPECT_THAT(members.retired(), IsEmpty());
}

}  // namespace
}  // namespace runahead
