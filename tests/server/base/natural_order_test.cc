#include "server/base/natural_order.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAreArray;

TEST(NaturalOrder, CountsAsPeopleDo) {
  const std::vector<std::string> ordered = {"",
                                            "10.0.0.9",
                                            "10.0.0.10",
                                            "10.0.1.1",
                                            "decode-0",
                                            "prefill",
                                            "prefill-0.prefill.runahead.svc.cluster.local",
                                            "prefill-2.prefill.runahead.svc.cluster.local",
                                            "prefill-10.prefill.runahead.svc.cluster.local",
                                            "prefill-10.prefill2.runahead.svc.cluster.local",
                                            "prefill-18446744073709551615",
                                            "prefill-18446744073709551616",
                                            "prefill-99999999999999999999999",
                                            "prefilled",
                                            "r001n2",
                                            "r01n2",
                                            "r1n2",
                                            "r1n10",
                                            "r2n1"};
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> shuffled = ordered;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    std::sort(shuffled.begin(), shuffled.end(), NaturalLess);
    EXPECT_THAT(shuffled, ElementsAreArray(ordered));
  }
}

TEST(NaturalOrder, ATextIsNotBeforeItself) {
  for (const char* text : {"", "0", "00", "prefill-1", "1a2b"}) EXPECT_FALSE(NaturalLess(text, text)) << text;
}

}  // namespace
}  // namespace runahead
