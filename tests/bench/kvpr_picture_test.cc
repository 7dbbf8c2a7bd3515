#include "tests/bench/kvpr_picture.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

absl::Time At(int64_t ms) {
  return absl::UnixEpoch() + absl::Milliseconds(ms);
}

TEST(KvprPicture, ShowsWhatTheLinkCarriesAheadForLayersBehindThoseThatItShows) {
  const StepPicture picture = PictureOf({{StepLane::kLink, 0, At(0), At(15)},
                                         {StepLane::kProject, 0, At(10), At(20)},
                                         {StepLane::kLink, 1, At(15), At(25)},
                                         {StepLane::kLink, 2, At(25), At(45)},
                                         {StepLane::kProject, 1, At(20), At(40)},
                                         {StepLane::kProject, 2, At(40), At(60)},
                                         {StepLane::kLink, 3, At(45), At(65)}},
                                        2);
  EXPECT_EQ(picture.begin, At(10));
  EXPECT_EQ(picture.end, At(40));
  std::vector<std::pair<int64_t, absl::Time>> loads;  // layers, and ends within the picture
  for (const StepTimes::Span& span : picture.spans) {
    EXPECT_GE(span.begin, picture.begin);
    if (span.lane == StepLane::kLink) {
      loads.emplace_back(span.layer, span.end);
    } else {
      EXPECT_LT(span.layer, 2);
    }
  }
  EXPECT_EQ(loads, (std::vector<std::pair<int64_t, absl::Time>>{{0, At(15)}, {1, At(25)}, {2, At(40)}}));
}

}  // namespace
}  // namespace runahead
