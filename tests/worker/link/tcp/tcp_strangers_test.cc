#include "worker/link/tcp/tcp_strangers.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const TcpStrangers::Clock::time_point kNow{};

TEST(TcpStrangers, TheOldestOfTheHostWithTheMostGoesFirst) {
  TcpStrangers strangers;
  strangers.Add(2, "10.0.0.1", kNow);
  EXPECT_EQ(strangers.First().id, 2);
  strangers.Add(3, "10.0.0.2", kNow);
  EXPECT_EQ(strangers.First().id, 2) << "of as many from each";
  strangers.Add(4, "10.0.0.2", kNow);
  EXPECT_EQ(strangers.First().id, 3);
  strangers.Remove(3);
  EXPECT_EQ(strangers.First().id, 2);
  EXPECT_EQ(strangers.size(), 2);
}

TEST(TcpStrangers, WhoHasSaidHelloGoesLastOfItsHost) {
  TcpStrangers strangers;
  for (const uint64_t id : {2, 3, 4}) strangers.Add(id, "::1", kNow);
  strangers.Greeted(2);
  EXPECT_EQ(strangers.First().id, 3);
  strangers.Greeted(3);
  EXPECT_EQ(strangers.First().id, 4);
  strangers.Greeted(4);
  EXPECT_EQ(strangers.First().id, 2) << "hellos alone keep nobody's place";
}

TEST(TcpStrangers, ACrowdThatSaysHelloTakesPlacesFromItsOwnHostOnly) {
  TcpStrangers strangers;
  strangers.Add(2, "10.0.0.1", kNow);
  for (uint64_t id = 3; id < 10; ++id) {
    strangers.Add(id, "10.0.0.2", kNow);
    strangers.Greeted(id);
  }
  EXPECT_EQ(strangers.First().id, 3);
}

TEST(TcpStrangers, WhoIsNoStrangerAnyMoreIsForgotten) {
  TcpStrangers strangers;
  strangers.Add(2, "10.0.0.1", kNow);
  EXPECT_EQ(strangers.HostOf(2), "10.0.0.1");
  strangers.Remove(2);
  strangers.Remove(2);
  EXPECT_EQ(strangers.HostOf(2), "");
  EXPECT_TRUE(strangers.empty());
}

}  // namespace
}  // namespace runahead
