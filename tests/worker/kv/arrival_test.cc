#include "worker/kv/arrival.h"

#include <optional>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// Layer, begin and end of KV that comes at once.
void Come(Arrival& arrival, int64_t layer, int64_t begin, int64_t end, SliceKind kind = SliceKind::kKv) {
  const std::optional<uint64_t> write = arrival.Begin(kind, layer, begin, end);
  ASSERT_TRUE(write.has_value());
  arrival.End(*write, /*arrived=*/true);
}

TEST(Arrival, IsCompleteWhenEveryLayerCoversThePrompt) {
  Arrival arrival(/*layers=*/3, /*tokens=*/300);
  Come(arrival, 0, 0, 300);
  Come(arrival, 2, 100, 300);
  Come(arrival, 1, 0, 300);
  EXPECT_FALSE(arrival.complete());
  EXPECT_EQ(arrival.layers_complete(), 2);
  EXPECT_TRUE(arrival.Covers(SliceKind::kKv, 2, 150, 200));
  EXPECT_FALSE(arrival.Covers(SliceKind::kKv, 2, 99, 200));
  Come(arrival, 2, 0, 120);
  EXPECT_TRUE(arrival.complete());
  Come(arrival, 2, 0, 300);
  EXPECT_TRUE(arrival.complete()) << "what comes twice counts once";
  EXPECT_EQ(arrival.layers_complete(), 3);
}

TEST(Arrival, WhatDoesNotComeCoversNothing) {
  Arrival arrival(1, 10);
  const std::optional<uint64_t> write = arrival.Begin(SliceKind::kKv, 0, 0, 10);
  arrival.End(*write, /*arrived=*/false);
  EXPECT_FALSE(arrival.Covers(SliceKind::kKv, 0, 0, 1));
  EXPECT_TRUE(arrival.Begin(SliceKind::kKv, 0, 0, 10).has_value()) << "it may come again";
}

TEST(Arrival, CountsWhatIsMissingAndWhatCameForTheFirstTime) {
  Arrival arrival(2, 300, {SliceKind::kKv, SliceKind::kX}, /*kv_from=*/100);
  EXPECT_EQ(arrival.Missing(SliceKind::kKv), 400);
  EXPECT_EQ(arrival.Missing(SliceKind::kX), 600);
  const auto came = [&](SliceKind kind, int64_t layer, int64_t begin, int64_t end, bool arrived) {
    const Arrival::Came fresh = arrival.End(*arrival.Begin(kind, layer, begin, end), arrived);
    EXPECT_EQ(fresh.kind, kind);
    return fresh.tokens;
  };
  EXPECT_EQ(came(SliceKind::kKv, 1, 50, 150, true), 50) << "what is not waited for does not count";
  EXPECT_EQ(came(SliceKind::kKv, 1, 120, 300, false), 0);
  EXPECT_EQ(came(SliceKind::kKv, 1, 120, 300, true), 150);
  EXPECT_EQ(came(SliceKind::kX, 0, 0, 300, true), 300);
  EXPECT_EQ(arrival.Missing(SliceKind::kKv), 200);
  EXPECT_EQ(arrival.Missing(SliceKind::kX), 300);
}

TEST(Arrival, OverlappingRangesAreNotUnderWayTogether) {
  Arrival arrival(2, 300, {SliceKind::kKv, SliceKind::kX});
  const std::optional<uint64_t> write = arrival.Begin(SliceKind::kKv, 0, 100, 200);
  EXPECT_FALSE(arrival.Begin(SliceKind::kKv, 0, 199, 201).has_value());
  EXPECT_FALSE(arrival.Begin(SliceKind::kKv, 0, 0, 101).has_value());
  EXPECT_TRUE(arrival.Begin(SliceKind::kKv, 0, 200, 201).has_value());
  EXPECT_TRUE(arrival.Begin(SliceKind::kKv, 1, 100, 200).has_value()) << "another layer";
  EXPECT_TRUE(arrival.Begin(SliceKind::kX, 0, 100, 200).has_value()) << "another kind";
  arrival.End(*write, true);
  EXPECT_TRUE(arrival.Begin(SliceKind::kKv, 0, 0, 101).has_value());
}

TEST(Arrival, EveryAgreedKindHasToCome) {
  Arrival arrival(2, 10, {SliceKind::kKv, SliceKind::kX});
  Come(arrival, 0, 0, 10);
  Come(arrival, 1, 0, 10);
  EXPECT_FALSE(arrival.complete());
  EXPECT_EQ(arrival.layers_complete(), 0);
  EXPECT_FALSE(arrival.Covers(SliceKind::kX, 0, 0, 1));
  Come(arrival, 1, 0, 10, SliceKind::kX);
  EXPECT_EQ(arrival.layers_complete(), 1);
  Come(arrival, 0, 0, 10, SliceKind::kX);
  EXPECT_TRUE(arrival.complete());
}

TEST(Arrival, KvBeforeWhereItIsNeededIsNotWaitedFor) {
  Arrival arrival(2, 300, {SliceKind::kKv, SliceKind::kX}, /*kv_from=*/128);
  EXPECT_EQ(arrival.kv_from(), 128);
  EXPECT_TRUE(arrival.Covers(SliceKind::kKv, 1, 0, 128));
  EXPECT_FALSE(arrival.Covers(SliceKind::kKv, 1, 0, 129));
  EXPECT_FALSE(arrival.Covers(SliceKind::kX, 1, 0, 1)) << "X is, from the first token on";
  Come(arrival, 0, 0, 300, SliceKind::kX);
  Come(arrival, 1, 0, 300, SliceKind::kX);
  EXPECT_EQ(arrival.Settled(), 128);
  EXPECT_EQ(arrival.layers_complete(), 0);
  Come(arrival, 0, 128, 300);
  EXPECT_FALSE(arrival.complete());
  Come(arrival, 1, 0, 300);  // from a worker that hands all of it off
  EXPECT_TRUE(arrival.complete());
  EXPECT_EQ(arrival.layers_complete(), 2);
}

TEST(Arrival, WhereNoKvIsNeededXIsAll) {
  Arrival arrival(1, 10, {SliceKind::kKv, SliceKind::kX}, /*kv_from=*/10);
  EXPECT_FALSE(arrival.complete());
  Come(arrival, 0, 0, 10, SliceKind::kX);
  EXPECT_TRUE(arrival.complete());
}

TEST(Arrival, SettledIsWhatAllLayersHaveAndNoWriteTouches) {
  Arrival arrival(2, 300);
  EXPECT_EQ(arrival.Settled(), 0);
  Come(arrival, 0, 0, 250);
  EXPECT_EQ(arrival.Settled(), 0);
  Come(arrival, 1, 0, 200);
  Come(arrival, 1, 210, 300);
  EXPECT_EQ(arrival.Settled(), 200);
  // Rows that have come may be written again, as part of a range of which some have not.
  const std::optional<uint64_t> again = arrival.Begin(SliceKind::kKv, 0, 120, 300);
  EXPECT_EQ(arrival.Settled(), 120);
  arrival.End(*again, false);
  EXPECT_EQ(arrival.Settled(), 200);
}

TEST(Arrival, WhatIsFixedHasComeInEveryLayer) {
  Arrival arrival(2, 300);
  arrival.Fix(256);
  arrival.Fix(0);
  EXPECT_EQ(arrival.fixed(), 256);
  EXPECT_TRUE(arrival.Covers(SliceKind::kKv, 1, 0, 256));
  EXPECT_FALSE(arrival.complete());
  Come(arrival, 0, 256, 300);
  Come(arrival, 1, 256, 300);
  EXPECT_TRUE(arrival.complete());
  Arrival whole(2, 256);
  whole.Fix(256);
  EXPECT_TRUE(whole.complete());
}

TEST(Arrival, WhatDoesNotComeIsNotWaitedForAndNeverSettled) {
  Arrival arrival(2, 300);
  EXPECT_EQ(arrival.end(), 300);
  arrival.EndAt(100);
  EXPECT_EQ(arrival.end(), 100);
  EXPECT_EQ(arrival.Missing(SliceKind::kKv), 2 * 100);
  Come(arrival, 0, 0, 100);
  EXPECT_FALSE(arrival.complete());
  Come(arrival, 1, 0, 100);
  EXPECT_TRUE(arrival.complete());
  EXPECT_EQ(arrival.Settled(), 100) << "others share what has come, and no more";
  Arrival none(2, 300);
  none.EndAt(0);
  EXPECT_TRUE(none.complete());
}

TEST(Arrival, WhatALayerHidesIsWaitedForInNoKind) {
  Arrival arrival(3, 300, {SliceKind::kKv, SliceKind::kX}, /*kv_from=*/64, /*hidden=*/{0, 200, 300});
  EXPECT_EQ(arrival.layers_complete(), 1) << "nobody sees anything of the last layer";
  EXPECT_EQ(arrival.Missing(SliceKind::kKv), 236 + 100);
  EXPECT_EQ(arrival.Missing(SliceKind::kX), 300 + 100);
  EXPECT_TRUE(arrival.Covers(SliceKind::kX, 1, 0, 200));
  EXPECT_FALSE(arrival.Covers(SliceKind::kX, 1, 0, 201));
  EXPECT_FALSE(arrival.Covers(SliceKind::kKv, 1, 199, 201));
  Come(arrival, 0, 64, 300);
  Come(arrival, 0, 0, 300, SliceKind::kX);
  Come(arrival, 1, 200, 300);
  EXPECT_FALSE(arrival.complete());
  Come(arrival, 1, 100, 300, SliceKind::kX);  // from a worker that hands more off
  EXPECT_TRUE(arrival.complete());
}

TEST(Arrival, WhatWasHiddenHereIsSettledForThoseOnlyThatDoNotSeeItEither) {
  Arrival arrival(2, 600, {SliceKind::kKv}, 0, /*hidden=*/{400, 100});
  Come(arrival, 0, 400, 600);
  Come(arrival, 1, 100, 550);
  const auto settled = [&](int64_t first, int64_t second) {
    return arrival.SettledFor(Arrival(2, 600, {SliceKind::kKv}, 0, {first, second}));
  };
  EXPECT_EQ(settled(400, 100), 550);
  EXPECT_EQ(settled(500, 300), 550);
  EXPECT_EQ(settled(399, 100), 399);
  EXPECT_EQ(settled(400, 99), 99);
  EXPECT_EQ(settled(0, 100), 0);
  EXPECT_EQ(arrival.SettledFor(Arrival(2, 600, {SliceKind::kKv, SliceKind::kX}, 0, {400, 100})), 0) << "it has no X";
}

}  // namespace
}  // namespace runahead
