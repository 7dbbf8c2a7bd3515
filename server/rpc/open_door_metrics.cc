#include "server/rpc/open_door_metrics.h"

namespace runahead {
namespace {

// In the order of the enums.
constexpr const char* kRefusals[] = {"slow", "full", "long"};
constexpr const char* kCuts[] = {"slow", "full"};

}  // namespace

OpenDoorMetrics::OpenDoorMetrics(MetricRegistry& registry) {
  for (size_t i = 0; i < refused_.size(); ++i) {
    refused_[i] = &registry.AddCounter("runahead_open_messages_refused_total",
                                       "Messages to methods that anybody may call that were not read to their end",
                                       {{"reason", kRefusals[i]}});
  }
  for (size_t i = 0; i < cut_off_.size(); ++i) {
    cut_off_[i] = &registry.AddCounter(
        "runahead_open_answers_cut_off_total",
        "Answers of methods that anybody may call that clients did not get, for they did not take them",
        {{"reason", kCuts[i]}});
  }
}

ArrivalWatcher OpenDoorMetrics::messages() const {
  ArrivalWatcher watcher;
  watcher.refused = [this](ArrivalWatcher::Refusal why) { refused_[static_cast<size_t>(why)]->Increment(); };
  return watcher;
}

DepartureWatcher OpenDoorMetrics::answers() const {
  DepartureWatcher watcher;
  watcher.cut = [this](DepartureWatcher::Cut why) { cut_off_[static_cast<size_t>(why)]->Increment(); };
  return watcher;
}

}  // namespace runahead
