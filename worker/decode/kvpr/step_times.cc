#include "worker/decode/kvpr/step_times.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace runahead {
namespace {

bool OnDevice(StepLane lane) {
  return lane == StepLane::kProject || lane == StepLane::kRecompute || lane == StepLane::kAttend ||
         lane == StepLane::kWindow;
}

// As traces name it.
const char* SpanName(StepLane lane) {
  switch (lane) {
    case StepLane::kProject:
      return "project";
    case StepLane::kRecompute:
      return "recompute";
    case StepLane::kAttend:
      return "attend";
    case StepLane::kWindow:
      return "attend_window";
    case StepLane::kLink:
      return "transfer";
    case StepLane::kStore:
      return "write_back";
    case StepLane::kSignal:
      return "signal";
    case StepLane::kHost:
      return "host_attention";
    case StepLane::kWeights:
      return "weights";
  }
  return "";
}

}  // namespace

void StepTimes::Add(const Span& span) {
  MutexLock lock(mu_);
  spans_.push_back(span);
}

void StepTimes::Add(StepLane lane, int64_t layer, std::shared_ptr<const TimeMark> begin,
                    std::shared_ptr<const TimeMark> end) {
  MutexLock lock(mu_);
  marked_.push_back({lane, layer, std::move(begin), std::move(end)});
}

const std::vector<StepTimes::Span>& StepTimes::Over() const {
  std::vector<Marked> left;
  for (Marked& marked : marked_) {
    const std::optional<absl::Time> end = marked.end->time();
    if (end.has_value()) {
      spans_.push_back({marked.lane, marked.layer, *marked.begin->time(), *end});
    } else {
      left.push_back(std::move(marked));
    }
  }
  marked_ = std::move(left);
  return spans_;
}

std::vector<StepTimes::Span> StepTimes::spans() const {
  MutexLock lock(mu_);
  return Over();
}

void StepTimes::CopyTo(SpanRecorder& recorder) const {
  MutexLock lock(mu_);
  for (const Span& span : Over()) recorder.AddDetail(SpanName(span.lane), span.layer, span.begin, span.end);
}

double StepTimes::Busy(StepLane lane) const {
  MutexLock lock(mu_);
  double seconds = 0;
  for (const Span& span : Over()) {
    if (span.lane == lane) seconds += absl::ToDoubleSeconds(span.end - span.begin);
  }
  return seconds;
}

double StepTimes::SignalSeconds() const {
  struct Way {
    absl::Time q_made, host_begins, host_ends, partials_there;
  };
  MutexLock lock(mu_);
  absl::flat_hash_map<int64_t, Way> ways;  // by layer
  for (const Span& span : Over()) {
    if (span.lane == StepLane::kHost) ways[span.layer] = {absl::InfinitePast(), span.begin, span.end, span.end};
  }
  for (const Span& span : Over()) {
    const auto found = ways.find(span.layer);
    if (found == ways.end()) continue;
    Way& way = found->second;
    if (span.lane == StepLane::kProject && span.end <= way.host_begins) way.q_made = std::max(way.q_made, span.end);
    if (span.lane == StepLane::kSignal) way.partials_there = std::max(way.partials_there, span.end);
  }
  absl::Duration all;
  for (const auto& [layer, way] : ways) {
    all += way.partials_there - way.host_ends;
    if (way.q_made != absl::InfinitePast()) all += way.host_begins - way.q_made;
  }
  return absl::ToDoubleSeconds(all);
}

double StepTimes::DeviceSeconds() const {
  MutexLock lock(mu_);
  absl::Time begin = absl::InfiniteFuture(), end = absl::InfinitePast();
  for (const Span& span : Over()) {
    if (span.lane == StepLane::kProject) begin = std::min(begin, span.begin);
    if (OnDevice(span.lane)) end = std::max(end, span.end);
  }
  return begin < end ? absl::ToDoubleSeconds(end - begin) : 0;
}

std::vector<StepTimes::Span> StepTimes::LinkSpans() const {
  std::vector<Span> sorted, merged;
  for (const Span& span : Over()) {
    if (span.lane == StepLane::kLink || span.lane == StepLane::kWeights) sorted.push_back(span);
  }
  std::sort(sorted.begin(), sorted.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (const Span& span : sorted) {
    if (merged.empty() || merged.back().end < span.begin) {
      merged.push_back(span);
    } else {
      merged.back().end = std::max(merged.back().end, span.end);
    }
  }
  return merged;
}

double StepTimes::LinkSeconds() const {
  MutexLock lock(mu_);
  double seconds = 0;
  for (const Span& span : LinkSpans()) seconds += absl::ToDoubleSeconds(span.end - span.begin);
  return seconds;
}

// Spans of one stream follow each other, so those of the device are sorted and disjoint.
double StepTimes::OverlapRatio() const {
  MutexLock lock(mu_);
  std::vector<Span> device;
  const std::vector<Span> link = LinkSpans();
  absl::Duration device_busy, link_busy, both;
  for (const Span& span : Over()) {
    if (OnDevice(span.lane)) device.push_back(span), device_busy += span.end - span.begin;
  }
  for (const Span& span : link) link_busy += span.end - span.begin;
  for (size_t d = 0, l = 0; d < device.size() && l < link.size();) {
    const absl::Time begin = std::max(device[d].begin, link[l].begin), end = std::min(device[d].end, link[l].end);
    if (begin < end) both += end - begin;
    (device[d].end < link[l].end ? d : l)++;
  }
  const absl::Duration shorter = std::min(device_busy, link_busy);
  return shorter > absl::ZeroDuration() ? absl::FDivDuration(both, shorter) : 0;
}

LaneSpan::LaneSpan(Device& device, Stream& stream, std::shared_ptr<StepTimes> times, StepLane lane, int64_t layer)
    : device_(device), stream_(stream), times_(std::move(times)), lane_(lane), layer_(layer) {
  if (times_ != nullptr) begin_ = device_.MarkTime(stream_);
}

LaneSpan::~LaneSpan() {
  if (times_ != nullptr) times_->Add(lane_, layer_, std::move(begin_), device_.MarkTime(stream_));
}

}  // namespace runahead
