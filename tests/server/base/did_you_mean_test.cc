#include "server/base/did_you_mean.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(ClosestName, FindsWhatWasMeant) {
  const std::vector<std::string> names = {"max_queue", "metrics_listen", "listen", "model"};
  EXPECT_EQ(ClosestName("max_queu", names), "max_queue");
  EXPECT_EQ(ClosestName("maxqueue", names), "max_queue");
  EXPECT_EQ(ClosestName("lisetn", names), "listen");
  EXPECT_EQ(ClosestName("modle", names), "model");
}

TEST(ClosestName, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(ClosestName("zebra", {"max_queue", "listen"}), "");
  EXPECT_EQ(ClosestName("x", {"a", "ab"}), "");
  EXPECT_EQ(ClosestName("anything", {}), "");
  EXPECT_EQ(ClosestName(std::string(100'000, 'a'), {std::string(64, 'a')}), "");
}

}  // namespace
}  // namespace runahead
