// What the picture of a KVPR step shows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "worker/decode/kvpr/step_times.h"

namespace runahead {

struct StepPicture {
  absl::Time begin = absl::InfiniteFuture(), end = absl::InfinitePast();
  std::vector<StepTimes::Span> spans;
};

// All spans of the first `layers` layers, and what the link carried meanwhile for later ones, which is loaded ahead: a
// link without it would seem to stand still. It begins where the device or the host does something: what is copied
// before the step counts from there.
inline StepPicture PictureOf(const std::vector<StepTimes::Span>& spans, int64_t layers) {
  const auto on_link = [](const StepTimes::Span& span) {
    return span.lane == StepLane::kLink || span.lane == StepLane::kWeights;
  };
  StepPicture picture;
  for (const StepTimes::Span& span : spans) {
    if (span.layer >= layers) continue;
    if (!on_link(span)) picture.begin = std::min(picture.begin, span.begin);
    picture.end = std::max(picture.end, span.end);
  }
  for (StepTimes::Span span : spans) {
    const bool meanwhile = on_link(span) && span.begin < picture.end;
    if ((span.layer >= layers && !meanwhile) || span.end < picture.begin) continue;
    span.begin = std::max(span.begin, picture.begin);
    span.end = std::min(span.end, picture.end);
    picture.spans.push_back(span);
  }
  return picture;
}

}  // namespace runahead
