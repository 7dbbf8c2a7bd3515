// The formulas of KV-Runahead (arXiv 2405.05329), to the digit.
#include "tests/scheduler/partition/chain_formulas.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

// Its section on traffic: Net_tsp(C, p) = (p - 1) C, Net_kvr(C, p) = (p - 1) / 2 * C.
TEST(ChainFormulas, TrafficOfEvenParts) {
  EXPECT_EQ(TspTrafficEntries(16384, 4), 3 * 16384);
  EXPECT_EQ(TspTrafficEntries(16384, 1), 0);
  EXPECT_EQ(KvrEvenTrafficEntries(16384, 4), 1.5 * 16384);
  EXPECT_EQ(KvrEvenTrafficEntries(7, 2), 3.5);
  EXPECT_EQ(KvrTrafficEntries({4096, 4096, 4096, 4096}), 3 * 16384 / 2);
  EXPECT_EQ(KvrTrafficEntries({100}), 0);
}

// Its example of 9 tokens on 3 processes: 36 and 22 rows of K and of V are exchanged, 18 and 11 pairs.
TEST(ChainFormulas, TrafficOfTheNineTokenExample) {
  EXPECT_EQ(2 * TspTrafficEntries(9, 3), 36);
  EXPECT_EQ(2 * KvrTrafficEntries({4, 3, 2}), 22);
}

// Its lower bound: TTFT*(p) = TTFT(1) / 2 * (1 / p + 1 / p^2).
TEST(ChainFormulas, LowerBound) {
  EXPECT_EQ(TtftLowerBound(8, 1), 8);
  EXPECT_EQ(TtftLowerBound(8, 2), 3);
  EXPECT_EQ(TtftLowerBound(8, 4), 1.25);
  EXPECT_EQ(TtftLowerBound(8, 8), 0.5625);
}

}  // namespace
}  // namespace runahead
