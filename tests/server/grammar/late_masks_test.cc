#include "server/grammar/late_masks.h"

#include <memory>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr MaskStateId kState = {1, 2, 3, 4};
constexpr size_t kMaskBytes = 10'000;

std::shared_ptr<const void> SomeMask() {
  return std::make_shared<int>(0);
}

TEST(LateMasks, AreFoundByFormAndState) {
  const auto all = std::make_shared<LateMasks>(10 * kMaskBytes);
  const auto form = LateMasks::OfNewForm(all), other = LateMasks::OfNewForm(all);
  EXPECT_EQ(form->Find(kState), nullptr);
  const auto mask = SomeMask();
  form->Keep(kState, mask, kMaskBytes);
  EXPECT_EQ(form->Find(kState), mask);
  EXPECT_EQ(other->Find(kState), nullptr);
  for (const MaskStateId& id :
       {MaskStateId{0, 2, 3, 4}, MaskStateId{1, 0, 3, 4}, MaskStateId{1, 2, 0, 4}, MaskStateId{1, 2, 3, 0}}) {
    EXPECT_EQ(form->Find(id), nullptr);
  }
}

// Form and state are gone, and yet nothing of it is found by one that takes their place in memory.
TEST(LateMasks, OfAFormThatIsGoneAreNobodyElses) {
  const auto all = std::make_shared<LateMasks>(10 * kMaskBytes);
  LateMasks::OfNewForm(all)->Keep(kState, SomeMask(), kMaskBytes);
  for (int form = 0; form < 10; ++form) EXPECT_EQ(LateMasks::OfNewForm(all)->Find(kState), nullptr);
}

TEST(LateMasks, ThatNobodyAskedForLongestGoFirst) {
  const auto all = std::make_shared<LateMasks>(4 * kMaskBytes);
  const auto form = LateMasks::OfNewForm(all), other = LateMasks::OfNewForm(all);
  for (int32_t i = 0; i < 3; ++i) form->Keep({i, 0, 0, 0}, SomeMask(), kMaskBytes);
  EXPECT_NE(form->Find({0, 0, 0, 0}), nullptr);
  other->Keep(kState, SomeMask(), kMaskBytes);  // whoever's
  EXPECT_NE(form->Find({0, 0, 0, 0}), nullptr);
  EXPECT_EQ(form->Find({1, 0, 0, 0}), nullptr);
  EXPECT_NE(form->Find({2, 0, 0, 0}), nullptr);
  EXPECT_LE(all->bytes(), 4 * kMaskBytes);
  EXPECT_GE(all->bytes(), 3 * kMaskBytes);
}

TEST(LateMasks, WhatIsLargerThanAllIsNotKept) {
  const auto all = std::make_shared<LateMasks>(kMaskBytes);
  const auto form = LateMasks::OfNewForm(all);
  form->Keep(kState, SomeMask(), 2 * kMaskBytes);
  EXPECT_EQ(form->Find(kState), nullptr);
  EXPECT_EQ(all->bytes(), 0);
}

// Two threads have made the same one.
TEST(LateMasks, AreKeptOnce) {
  const auto all = std::make_shared<LateMasks>(10 * kMaskBytes);
  const auto form = LateMasks::OfNewForm(all);
  const auto first = SomeMask();
  form->Keep(kState, first, kMaskBytes);
  const size_t bytes = all->bytes();
  form->Keep(kState, SomeMask(), kMaskBytes);
  EXPECT_EQ(form->Find(kState), first);
  EXPECT_EQ(all->bytes(), bytes);
}

}  // namespace
}  // namespace runahead
