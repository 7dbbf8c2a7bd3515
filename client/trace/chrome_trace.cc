#include "client/trace/chrome_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace runahead {
namespace {

using Json = nlohmann::ordered_json;

// Where spans of a name are drawn, from top to bottom.
struct Lane {
  const char* name;
  std::vector<absl::string_view> spans;
};

const std::vector<Lane>& Lanes() {
  static const auto* const lanes = new std::vector<Lane>{
      {"request", {"request"}},
      {"queue", {"wait_kv"}},
      {"receive", {"receive"}},
      {"compute", {"qkv", "wait", "attention", "mlp", "sample"}},
      {"send", {"send", "forward"}},
      {"hand-off", {"handoff", "x_handoff"}},
      {"steps", {"step", "prompt_rows"}},
      {"link", {"transfer", "weights"}},
      {"device", {"project", "recompute", "attend", "attend_window"}},
      {"host", {"host_attention"}},
      {"signal", {"signal"}},
      {"write-back", {"write_back"}},
      {"other", {}},
  };
  return *lanes;
}

// The router's stages follow each other; a worker's queue is one of its lanes.
constexpr char kStages[] = "stages";
constexpr char kQueue[] = "queue";

struct LaneName {
  size_t order = 0;
  std::string name;
  friend bool operator<(const LaneName& a, const LaneName& b) { return a.order < b.order; }
};

LaneName LaneOf(bool router, const std::string& span) {
  const std::vector<Lane>& lanes = Lanes();
  if (router && span != "request") return {1, kStages};
  if (span == kQueue) return {1, kQueue};
  size_t lane = 0;
  while (lane + 1 < lanes.size()) {
    const auto& spans = lanes[lane].spans;
    if (std::find(spans.begin(), spans.end(), span) != spans.end()) break;
    ++lane;
  }
  return {lane, lanes[lane].name};
}

// What `amount` counts.
const char* AmountName(const std::string& span) {
  for (const char* bytes : {"receive", "send", "forward", "handoff", "x_handoff"}) {
    if (span == bytes) return "bytes";
  }
  return span == "step" ? "sequences" : "tokens";
}

Json Metadata(const char* what, int process, int thread, Json arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", std::move(arguments)}};
}

double Microseconds(int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

Json Event(const v1::TraceSpan& span, int process, int thread) {
  Json arguments = Json::object();
  if (span.layer() >= 0) arguments["layer"] = span.layer();
  if (span.amount() != 0) arguments[AmountName(span.name())] = span.amount();
  return {{"ph", "X"},
          {"name", span.name()},
          {"pid", process},
          {"tid", thread},
          {"ts", Microseconds(span.start_ns())},
          {"dur", Microseconds(span.duration_ns())},
          {"args", std::move(arguments)}};
}

// Lanes of one name, side by side: each is busy until its last span's end.
struct Tracks {
  std::string name;
  std::vector<int64_t> busy_until;
  std::vector<std::vector<const v1::TraceSpan*>> spans;
};

// The first track that is free when the span begins, or a new one. Spans come by their start.
void Place(const v1::TraceSpan& span, Tracks& tracks) {
  size_t track = 0;
  while (track < tracks.busy_until.size() && tracks.busy_until[track] > span.start_ns()) ++track;
  if (track == tracks.busy_until.size()) {
    tracks.busy_until.push_back(0);
    tracks.spans.emplace_back();
  }
  tracks.busy_until[track] = span.start_ns() + span.duration_ns();
  tracks.spans[track].push_back(&span);
}

std::map<LaneName, Tracks> TracksOf(const v1::TraceProcess& process, bool router) {
  std::vector<const v1::TraceSpan*> sorted;
  for (const v1::TraceSpan& span : process.spans()) sorted.push_back(&span);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->start_ns() < b->start_ns(); });
  std::map<LaneName, Tracks> lanes;
  for (const v1::TraceSpan* span : sorted) {
    const LaneName lane = LaneOf(router, span->name());
    Tracks& tracks = lanes[lane];
    tracks.name = lane.name;
    Place(*span, tracks);
  }
  return lanes;
}

// Without the router, which is the reference.
std::string LabelOf(const v1::TraceProcess& process) {
  std::string label =
      absl::StrFormat("clock within %.3f ms of the router's", static_cast<double>(process.clock_error_ns()) / 1e6);
  if (process.dropped() > 0) absl::StrAppend(&label, ", ", process.dropped(), " spans dropped");
  return label;
}

void AddProcess(const v1::TraceProcess& process, int number, Json& events) {
  const bool router = number == 1;
  events.push_back(Metadata("process_name", number, 0, {{"name", process.name()}}));
  events.push_back(Metadata("process_sort_index", number, 0, {{"sort_index", number}}));
  if (!router) events.push_back(Metadata("process_labels", number, 0, {{"labels", LabelOf(process)}}));
  int thread = 0;
  for (const auto& [lane, tracks] : TracksOf(process, router)) {
    for (size_t track = 0; track < tracks.spans.size(); ++track) {
      ++thread;
      const std::string name = track == 0 ? tracks.name : absl::StrCat(tracks.name, " ", track + 1);
      events.push_back(Metadata("thread_name", number, thread, {{"name", name}}));
      events.push_back(Metadata("thread_sort_index", number, thread, {{"sort_index", thread}}));
      for (const v1::TraceSpan* span : tracks.spans[track]) events.push_back(Event(*span, number, thread));
    }
  }
}

}  // namespace

std::string ChromeTrace(const v1::Trace& trace) {
  Json events = Json::array(), errors = Json::object(), dropped = Json::object();
  int number = 0;
  for (const v1::TraceProcess& process : trace.processes()) {
    AddProcess(process, ++number, events);
    errors[process.name()] = Microseconds(process.clock_error_ns());
    dropped[process.name()] = process.dropped();
  }
  const Json json = {{"displayTimeUnit", "ms"},
                     {"otherData",
                      {{"request_id", trace.request_id()},
                       {"trace_id", trace.trace_id()},
                       {"clock_error_us", std::move(errors)},
                       {"dropped_spans", std::move(dropped)}}},
                     {"traceEvents", std::move(events)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace runahead
