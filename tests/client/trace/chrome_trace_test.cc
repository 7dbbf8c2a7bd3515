#include "client/trace/chrome_trace.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

struct Drawn {
  std::string process, lane, name;
  double begin = 0, duration = 0;
  nlohmann::json args;
};

void AddSpan(v1::TraceProcess& process, const std::string& name, int layer, int64_t start_ns, int64_t duration_ns,
             int64_t amount = 0) {
  v1::TraceSpan& span = *process.add_spans();
  span.set_name(name);
  span.set_layer(layer);
  span.set_start_ns(start_ns);
  span.set_duration_ns(duration_ns);
  span.set_amount(amount);
}

v1::TraceProcess& Process(v1::Trace& trace, const std::string& name) {
  v1::TraceProcess& process = *trace.add_processes();
  process.set_name(name);
  return process;
}

// What a viewer would draw, with the names that it would show.
std::vector<Drawn> DrawnOf(const nlohmann::json& file) {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> lanes;
  std::vector<Drawn> drawn;
  for (const auto& event : file.at("traceEvents")) {
    const int pid = event.at("pid"), tid = event.at("tid");
    if (event["name"] == "process_name") processes[pid] = event.at("args").at("name");
    if (event["name"] == "thread_name") lanes[{pid, tid}] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    drawn.push_back(
        {processes.at(pid), lanes.at({pid, tid}), event.at("name"), event.at("ts"), event.at("dur"), event.at("args")});
  }
  return drawn;
}

TEST(ChromeTrace, SaysWhereAndWhenASpanWas) {
  v1::Trace trace;
  trace.set_request_id("r-1");
  trace.set_trace_id("abc");
  AddSpan(Process(trace, "router"), "prefill", -1, 1500, 2'000'001);
  v1::TraceProcess& worker = Process(trace, "prefill-0");
  worker.set_clock_error_ns(52'000);
  worker.set_dropped(3);
  AddSpan(worker, "send", 7, -20, 40, 4096);
  const auto file = nlohmann::json::parse(ChromeTrace(trace));
  EXPECT_EQ(file["otherData"]["request_id"], "r-1");
  EXPECT_EQ(file["otherData"]["trace_id"], "abc");
  EXPECT_EQ(file["otherData"]["clock_error_us"]["prefill-0"], 52.0);
  EXPECT_EQ(file["otherData"]["clock_error_us"]["router"], 0.0);
  EXPECT_EQ(file["otherData"]["dropped_spans"]["prefill-0"], 3);
  const std::vector<Drawn> drawn = DrawnOf(file);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_EQ(drawn[0].process, "router");
  EXPECT_EQ(drawn[0].lane, "stages");
  EXPECT_DOUBLE_EQ(drawn[0].begin, 1.5);
  EXPECT_DOUBLE_EQ(drawn[0].duration, 2000.001);
  EXPECT_TRUE(drawn[0].args.empty());
  EXPECT_EQ(drawn[1].process, "prefill-0");
  EXPECT_EQ(drawn[1].lane, "send");
  EXPECT_DOUBLE_EQ(drawn[1].begin, -0.02);
  EXPECT_EQ(drawn[1].args, (nlohmann::json{{"layer", 7}, {"bytes", 4096}}));
  EXPECT_NE(ChromeTrace(trace).find("clock within 0.052 ms of the router's, 3 spans dropped"), std::string::npos);
}

TEST(ChromeTrace, LanesAreNamedByWhatTheySpend) {
  v1::Trace trace;
  v1::TraceProcess &router = Process(trace, "router"), &worker = Process(trace, "w");
  const std::map<std::string, std::string> lanes = {
      {"queue", "queue"},          {"wait_kv", "queue"},     {"qkv", "compute"},
      {"wait", "compute"},         {"attention", "compute"}, {"mlp", "compute"},
      {"sample", "compute"},       {"receive", "receive"},   {"send", "send"},
      {"forward", "send"},         {"handoff", "hand-off"},  {"x_handoff", "hand-off"},
      {"step", "steps"},           {"transfer", "link"},     {"weights", "link"},
      {"project", "device"},       {"recompute", "device"},  {"attend", "device"},
      {"host_attention", "host"},  {"signal", "signal"},     {"write_back", "write-back"},
      {"what came later", "other"}};
  int64_t at = 0;
  for (const auto& [span, lane] : lanes) AddSpan(worker, span, -1, at += 10, 5);
  AddSpan(router, "queue", -1, 0, 5);
  AddSpan(router, "request", -1, 0, 500);
  for (const Drawn& drawn : DrawnOf(nlohmann::json::parse(ChromeTrace(trace)))) {
    if (drawn.process == "w") {
      EXPECT_EQ(drawn.lane, lanes.at(drawn.name)) << drawn.name;
    } else {
      EXPECT_EQ(drawn.lane, drawn.name == "queue" ? "stages" : "request");
    }
  }
}

TEST(ChromeTrace, SpansThatOverlapGoToLanesSideBySide) {
  v1::Trace trace;
  Process(trace, "router");
  v1::TraceProcess& worker = Process(trace, "w");
  AddSpan(worker, "send", 2, 50, 100);  // as they were recorded, by their end
  AddSpan(worker, "send", 0, 0, 100);
  AddSpan(worker, "send", 1, 20, 60);
  AddSpan(worker, "send", 3, 100, 10);
  AddSpan(worker, "send", 4, 80, 10);
  std::map<std::string, std::vector<int>> layers;
  for (const Drawn& drawn : DrawnOf(nlohmann::json::parse(ChromeTrace(trace)))) {
    layers[drawn.lane].push_back(drawn.args.at("layer"));
  }
  EXPECT_THAT(layers["send"], ElementsAre(0, 3)) << "one ends where the next begins";
  EXPECT_THAT(layers["send 2"], ElementsAre(1, 4));
  EXPECT_THAT(layers["send 3"], ElementsAre(2));
}

TEST(ChromeTrace, TextFromOutsideCannotBreakTheFile) {
  v1::Trace trace;
  trace.set_request_id("\"}],\xff\n");
  Process(trace, "router");
  Process(trace, "name with \"quotes\" and \x80");
  EXPECT_FALSE(nlohmann::json::parse(ChromeTrace(trace), nullptr, false).is_discarded());
}

}  // namespace
}  // namespace runahead
