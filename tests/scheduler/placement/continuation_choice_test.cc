#include "scheduler/placement/continuation_choice.h"

#include <cmath>

#include "gtest/gtest.h"

namespace runahead {
namespace {

double Unknown(int64_t) {
  return 0;
}

int64_t LeastKnownToContinue(const ContinuationView& view, absl::FunctionRef<double(int64_t tokens)> on_one_s) {
  return OfferToContinue(view, on_one_s).least_known_tokens;
}

// A millisecond a token.
double Linear(int64_t tokens) {
  return 1e-3 * static_cast<double>(tokens);
}

// Attention grows with the square.
double Curved(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return 1e-3 * n + 1e-6 * n * n;
}

// As a table whose shortest prompt has 1,024 tokens.
double Flat(int64_t tokens) {
  return tokens <= 1024 ? 1 : Linear(tokens);
}

TEST(ContinuationChoice, WithoutTimesHalfOfThePromptMustBeThere) {
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 500}, Unknown), 500);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 999}, Unknown), 500);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 499}, Unknown), 0);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1001, .known_tokens = 800}, Unknown), 501);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 900}, Linear), 500) << "no time of a chain";
}

TEST(ContinuationChoice, TheRestMustComeSoonerThanAChain) {
  // 1,000 tokens take 1 s on one worker, and 0.3 s on a chain: 300 may be left, but not with as much time.
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 0.3}, Linear), 701);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 701, .chain_s = 0.3}, Linear), 701);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 600, .chain_s = 0.3}, Linear), 0);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 100}, Linear), 32)
      << "a queue";
}

TEST(ContinuationChoice, BesideOtherSequencesTheRestTakesTwiceAsLong) {
  ContinuationView view{.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 0.3, .busy = true};
  EXPECT_EQ(LeastKnownToContinue(view, Linear), 851);
  view.known_tokens = 850;
  EXPECT_EQ(LeastKnownToContinue(view, Linear), 0);
}

TEST(ContinuationChoice, EachRestThatIsComputedThereMakesItLater) {
  ContinuationView view{.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 0.45};
  for (view.rests = 0; view.rests < 4; ++view.rests) {
    const ContinuationOffer offer = OfferToContinue(view, Linear);
    EXPECT_GT(offer.least_known_tokens, 0) << view.rests;
    EXPECT_NEAR(offer.rest_s, 0.1 * static_cast<double>(1 + view.rests), 1e-9);
    EXPECT_EQ(offer.whole_s, 0.45);
  }
  EXPECT_EQ(LeastKnownToContinue(view, Linear), 0) << "then a chain is sooner";
}

TEST(ContinuationChoice, OffersCompareByWhatIsLeftWhereNoTimesAreKnown) {
  const ContinuationOffer much = OfferToContinue({.prompt_tokens = 1000, .known_tokens = 900}, Unknown);
  const ContinuationOffer less = OfferToContinue({.prompt_tokens = 1000, .known_tokens = 600}, Unknown);
  EXPECT_LT(much.rest_s, less.rest_s);
  EXPECT_EQ(much.whole_s, 0) << "nobody knows what is saved";
}

TEST(ContinuationChoice, TheRestOfALongPromptTakesMoreThanItsShare) {
  // The last 1,000 of 10,000 tokens attend to all others: 20 s of 110.
  EXPECT_NEAR(SecondsOfRest(10000, 9000, Curved), 20, 1e-9);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 10000, .known_tokens = 9000, .chain_s = 19}, Curved), 0);
  EXPECT_GT(LeastKnownToContinue({.prompt_tokens = 10000, .known_tokens = 9000, .chain_s = 21}, Curved), 8900);
}

TEST(ContinuationChoice, WhereShortPromptsTakeTheSameTheRestTakesItsShare) {
  EXPECT_EQ(SecondsOfRest(1000, 900, Flat), 0.1);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 0.09}, Flat), 0);
  EXPECT_GT(LeastKnownToContinue({.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 0.2}, Flat), 0);
}

TEST(ContinuationChoice, TheLastTokenIsAlwaysComputedAndShortBeginningsAreWorthNothing) {
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 100, .known_tokens = 100, .chain_s = 0.0011}, Linear), 99);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 100, .known_tokens = 100, .chain_s = 0.0009}, Linear), 0);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 40, .known_tokens = 31}, Unknown), 0);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 40, .known_tokens = 36}, Unknown), 32);
  EXPECT_EQ(LeastKnownToContinue({.prompt_tokens = 32, .known_tokens = 32}, Unknown), 0);
}

TEST(ContinuationChoice, ItPaysToWaitWhereTheWaitAndTheRestAreSoonerThanAll) {
  // Of 1,000 tokens 100 are left, which take 0.2 s beside the sequence that is waited for.
  const ContinuationView view{.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 1, .busy = true};
  EXPECT_TRUE(PaysToWait(view, 0.79, Linear));
  EXPECT_FALSE(PaysToWait(view, 0.81, Linear));
  EXPECT_FALSE(PaysToWait(view, 1.5, Linear)) << "it comes later than all";
  EXPECT_TRUE(PaysToWait(view, -3, Linear)) << "it is late, and may come any moment";
}

TEST(ContinuationChoice, OthersThatWaitMakeTheRestLater) {
  ContinuationView view{.prompt_tokens = 1000, .known_tokens = 900, .chain_s = 1, .busy = true};
  for (view.rests = 0; view.rests < 4; ++view.rests) EXPECT_TRUE(PaysToWait(view, 0.1, Linear)) << view.rests;
  EXPECT_FALSE(PaysToWait(view, 0.1, Linear));
}

TEST(ContinuationChoice, WithoutTimesItPaysToWaitForHalfOfThePrompt) {
  EXPECT_TRUE(PaysToWait({.prompt_tokens = 1000, .known_tokens = 500}, 9, Unknown));
  EXPECT_FALSE(PaysToWait({.prompt_tokens = 1000, .known_tokens = 499}, 9, Unknown));
  EXPECT_TRUE(PaysToWait({.prompt_tokens = 1000, .known_tokens = 500, .chain_s = 1}, 9, Unknown));
}

TEST(ContinuationChoice, ItPaysToWaitForAChainWhereTheWaitAndTheRestAreSoonerThanAll) {
  const ComingBehindView view{.prompt_tokens = 1000, .known_tokens = 900, .whole_s = 1, .rest_s = 0.2};
  EXPECT_TRUE(PaysToWaitForChain(view, 0.77));
  EXPECT_FALSE(PaysToWaitForChain(view, 0.79)) << "it must be sooner by a tenth of the rest";
  EXPECT_TRUE(PaysToWaitForChain(view, -3)) << "it is late, and may come any moment";
}

TEST(ContinuationChoice, WhereBringingTakesLongerThanComputingAllItDoesNotWaitForAChain) {
  // Whatever goes before the chain that computes all goes before the other, too.
  ComingBehindView view{.prompt_tokens = 1000, .known_tokens = 900, .whole_s = 3, .before_s = 2, .rest_s = 0.9};
  EXPECT_TRUE(PaysToWaitForChain(view, 0));
  view.rest_s = 1.1;
  EXPECT_FALSE(PaysToWaitForChain(view, 0));
}

TEST(ContinuationChoice, ChainsOfOthersThatWaitGoFirst) {
  ComingBehindView view{.prompt_tokens = 1000, .known_tokens = 900, .whole_s = 1, .rest_s = 0.2, .each_s = 0.1};
  for (view.waiting = 0; view.waiting < 7; ++view.waiting) EXPECT_TRUE(PaysToWaitForChain(view, 0.15)) << view.waiting;
  EXPECT_FALSE(PaysToWaitForChain(view, 0.15));
}

TEST(ContinuationChoice, WithoutTimesItPaysToWaitForAChainForHalfOfThePrompt) {
  EXPECT_TRUE(PaysToWaitForChain({.prompt_tokens = 1000, .known_tokens = 500}, 9));
  EXPECT_FALSE(PaysToWaitForChain({.prompt_tokens = 1000, .known_tokens = 499}, 9));
  EXPECT_TRUE(PaysToWaitForChain({.prompt_tokens = 1000, .known_tokens = 500, .whole_s = 1}, 9));
  EXPECT_TRUE(PaysToWaitForChain({.prompt_tokens = 33, .known_tokens = 33}, 0));
  EXPECT_FALSE(PaysToWaitForChain({.prompt_tokens = 32, .known_tokens = 32}, 0)) << "too short to begin behind";
}

TEST(ContinuationChoice, StepsCostMoreWhereTheyLoseMoreThanTheBeginningSaves) {
  EXPECT_FALSE(StepsCostMore(/*saved_s=*/2, /*lost_step_s=*/4e-3, /*steps=*/499));
  EXPECT_TRUE(StepsCostMore(2, 4e-3, 501));
  EXPECT_FALSE(StepsCostMore(2, 0, 1 << 30)) << "nothing is lost";
  EXPECT_FALSE(StepsCostMore(2, 1e6, 0)) << "an answer that has no steps";
  EXPECT_FALSE(StepsCostMore(2, std::nan(""), 100)) << "nobody knows";
}

}  // namespace
}  // namespace runahead
