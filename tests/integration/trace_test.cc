// A request that is traced, with real processes, one of which has a clock that is a minute off: what `runahead trace`
// writes shows the staircase of the chain, as far as the clocks are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::ServingProcess;
using testing::TestProcess;

constexpr int64_t kTracedLayers = 4;
constexpr int kTracedPrefill = 3;
constexpr int kOff = 1;  // whose clock is off
constexpr int64_t kOffSeconds = 60;
constexpr int kTracedTokens = 6;
constexpr double kRounding = 2e-3;  // of sums, in microseconds

// As a viewer shows it; times in microseconds.
struct ShownSpan {
  std::string name;
  int layer = -1;
  double begin = 0, end = 0;
};
struct ShownProcess {
  double clock_error = 0;
  std::map<std::string, std::vector<ShownSpan>> lanes;  // by their begin

  std::vector<ShownSpan> Of(const std::string& name, int layer) const {
    std::vector<ShownSpan> found;
    for (const auto& [lane, spans] : lanes) {
      for (const ShownSpan& span : spans) {
        if (span.name == name && span.layer == layer) found.push_back(span);
      }
    }
    return found;
  }
};

std::map<std::string, ShownProcess> ShownBy(const nlohmann::json& file) {
  std::map<int, std::string> names;
  std::map<std::pair<int, int>, std::string> lanes;
  std::map<std::string, ShownProcess> shown;
  for (const auto& event : file.at("traceEvents")) {
    const int pid = event.at("pid"), tid = event.at("tid");
    if (event["name"] == "process_name") names[pid] = event.at("args").at("name");
    if (event["name"] == "thread_name") lanes[{pid, tid}] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    shown[names.at(pid)].lanes[lanes.at({pid, tid})].push_back(
        {event.at("name"), event.at("args").value("layer", -1), begin, begin + duration});
  }
  for (auto& [name, process] : shown) process.clock_error = file.at("otherData").at("clock_error_us").at(name);
  return shown;
}

class TraceTest : public ::testing::Test {
 protected:
  // `of_decode` are more of the decode worker's options.
  void Start(const SyntheticModel& model = SmallModel(kTracedLayers), const std::vector<std::string>& of_decode = {}) {
    model_ = WriteSynthetic(model, "trace_test");
    std::ofstream(offset_, std::ios::binary).write(reinterpret_cast<const char*>(&kOffSeconds), sizeof kOffSeconds);
    std::vector<std::string> router = {RUNAHEAD_ROUTER, "--model", model_, "--trace", "asked", "--experiments"};
    for (int i = 0; i < kTracedPrefill; ++i) Add("prefill", i, {}, router);
    Add("decode", 0, of_decode, router);
    router_ = std::make_unique<ServingProcess>(router);
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(router_->address, grpc::InsecureChannelCredentials()));
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      v1::ListModelsResponse models;
      return stub_->ListModels(&context, {}, &models).ok() && models.models_size() == 1 &&
             models.models(0).prefill_workers() == kTracedPrefill && models.models(0).decode_workers() == 1;
    })) << router_->process.err();
  }
  ~TraceTest() override {
    for (const std::string& file : {file_, offset_}) unlink(file.c_str());
  }

  void Add(const std::string& role, int index, const std::vector<std::string>& more, std::vector<std::string>& router) {
    std::vector<std::string> args;
    if (role == "prefill" && index == kOff) {
      args = {"/usr/bin/env", absl::StrCat("LD_PRELOAD=", RUNAHEAD_STEPPED_CLOCK),
              absl::StrCat("RUNAHEAD_STEPPED_CLOCK=", offset_)};
    }
    args.insert(args.end(), {RUNAHEAD_WORKER, "--role", role, "--name", absl::StrCat(role, "-", index), "--threads",
                             "1", "--dtype", "f32", "--model", model_});
    args.insert(args.end(), more.begin(), more.end());
    workers_.push_back(std::make_unique<ServingProcess>(args));
    router.insert(router.end(), {"--workers", absl::StrCat("role=", role, ",address=", workers_.back()->address)});
  }

  // The answer's object, of a prompt over the whole line.
  nlohmann::json Generate(int prompt_tokens, const std::vector<std::string>& more, int tokens = kTracedTokens) {
    std::vector<std::string> args = {RUNAHEAD_BINARY,
                                     "generate",
                                     "--router",
                                     router_->address,
                                     "--json",
                                     "--width",
                                     absl::StrCat(kTracedPrefill),
                                     "--max-tokens",
                                     absl::StrCat(tokens),
                                     "--ignore-eos",
                                     "--token-ids"};
    args.push_back(absl::StrJoin(SyntheticIds(prompt_tokens, 1), ","));
    args.insert(args.end(), more.begin(), more.end());
    TestProcess generate(args);
    EXPECT_EQ(generate.Wait(), 0) << generate.err();
    return nlohmann::json::parse(generate.out(), nullptr, false);
  }

  TestProcess Trace(const std::string& request) {
    return TestProcess({RUNAHEAD_BINARY, "trace", "--router", router_->address, "--request", request, "-o", file_});
  }
  nlohmann::json File() const {
    std::stringstream text;
    text << std::ifstream(file_).rdbuf();
    return nlohmann::json::parse(text.str());
  }

  std::string model_;
  const std::string offset_ = absl::StrCat(::testing::TempDir(), "/trace-clock-", getpid());
  const std::string file_ = absl::StrCat(::testing::TempDir(), "/trace-", getpid(), ".json");
  std::vector<std::unique_ptr<ServingProcess>> workers_;
  std::unique_ptr<ServingProcess> router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

double EndOf(const std::vector<ShownSpan>& spans) {
  double end = spans.at(0).end;
  for (const ShownSpan& span : spans) end = std::max(end, span.end);
  return end;
}

// What one thread or stream does, one after the other; a second lane of it would say that spans overlap.
void ExpectOneAfterTheOther(const std::string& name, const ShownProcess& process) {
  for (const char* lane : {"compute 2", "steps 2", "stages 2", "device 2"}) {
    EXPECT_FALSE(process.lanes.contains(lane)) << name << ": " << lane;
  }
  for (const auto& [lane, spans] : process.lanes) {
    for (size_t i = 1; i < spans.size(); ++i) {
      EXPECT_LE(spans[i - 1].end, spans[i].begin + kRounding) << name << ", " << lane << ", span " << i;
    }
  }
}

TEST_F(TraceTest, TheFileShowsTheStaircaseOfTheChain) {
  Start();
  Generate(600, {});  // connections are made, memory is touched
  const nlohmann::json answer = Generate(600, {"--trace"});
  ASSERT_FALSE(answer.is_discarded());
  TestProcess trace = Trace(answer.at("request_id"));
  ASSERT_EQ(trace.Wait(), 0) << trace.err();
  const nlohmann::json file = File();
  EXPECT_EQ(file["otherData"]["trace_id"], answer.at("trace_id"));
  const std::map<std::string, ShownProcess> shown = ShownBy(file);
  ASSERT_EQ(shown.size(), kTracedPrefill + 2u);

  // The whole request, on the router's clock, within which all else lies.
  const ShownProcess& router = shown.at("router");
  const ShownSpan whole = router.Of("request", -1).at(0);
  for (const auto& [name, process] : shown) {
    ExpectOneAfterTheOther(name, process);
    EXPECT_LT(process.clock_error + (whole.end - whole.begin), kOffSeconds * 1e6) << name << ": else it would not show";
    EXPECT_EQ(process.clock_error == 0, name == "router");
    EXPECT_EQ(file["otherData"]["dropped_spans"][name], 0);
    for (const auto& [lane, spans] : process.lanes) {
      for (const ShownSpan& span : spans) {
        EXPECT_GE(span.begin, whole.begin - process.clock_error - kRounding) << name << ": " << span.name;
        // That a slice was taken is often heard after the last token.
        const bool needed = lane == "compute" || lane == "receive" || lane == "steps" || lane == "stages";
        if (needed) {
          EXPECT_LE(span.end, whole.end + process.clock_error + kRounding) << name << ": " << span.name;
        }
      }
    }
  }

  // Every member has every layer.
  const std::vector<std::string> chain = answer.at("plan").at("workers");
  ASSERT_EQ(chain.size(), static_cast<size_t>(kTracedPrefill));
  for (size_t i = 0; i < chain.size(); ++i) {
    const ShownProcess& member = shown.at(chain[i]);
    const bool tail = i + 1 == chain.size();
    for (int layer = 0; layer < kTracedLayers; ++layer) {
      SCOPED_TRACE(absl::StrCat(chain[i], ", layer ", layer));
      ASSERT_EQ(member.Of("qkv", layer).size(), 1u);
      EXPECT_EQ(member.Of("receive", layer).size(), i);
      EXPECT_EQ(member.Of("send", layer).size(), tail ? 0 : 1);
      EXPECT_EQ(member.Of("handoff", layer).size(), 1u);
      const bool attends = tail || layer + 1 < kTracedLayers;
      EXPECT_EQ(member.Of("attention", layer).size(), attends ? 1 : 0);
      EXPECT_EQ(member.Of("mlp", layer).size(), attends ? 1 : 0);
      if (i == 0) continue;
      // A step of the stairs: KV comes when it has been made, and is attended to when it has come.
      const ShownProcess& before = shown.at(chain[i - 1]);
      const double apart = member.clock_error + before.clock_error + kRounding;
      EXPECT_GE(EndOf(member.Of("receive", layer)), EndOf(before.Of("qkv", layer)) - apart);
      if (attends) {
        EXPECT_GE(member.Of("attention", layer).at(0).begin, EndOf(member.Of("receive", layer)) - kRounding);
      }
    }
  }
  EXPECT_EQ(shown.at(chain.back()).Of("sample", -1).size(), 1u);

  // Then the decode worker's steps, the first token being the tail's.
  const ShownProcess& decode = shown.at("decode-0");
  const std::vector<ShownSpan> steps = decode.Of("step", -1);
  EXPECT_EQ(steps.size(), kTracedTokens - 1u);
  const ShownProcess& tail = shown.at(chain.back());
  EXPECT_GE(steps.at(0).begin, tail.Of("sample", -1).at(0).end - tail.clock_error - decode.clock_error - kRounding);
  EXPECT_EQ(router.Of("decode", -1).size(), 1u);
}

TEST_F(TraceTest, AnAnswerThatAStopStringEndsShowsTheStepsUntilThen) {
  Start();
  constexpr int kMany = 1000;
  const std::string text = Generate(600, {}).at("text");
  const nlohmann::json answer = Generate(600, {"--trace", "--stop", text}, kMany);
  ASSERT_FALSE(answer.is_discarded());
  EXPECT_EQ(answer.at("finish_reason"), "stop");
  TestProcess trace = Trace(answer.at("request_id"));
  ASSERT_EQ(trace.Wait(), 0) << trace.err();
  const std::map<std::string, ShownProcess> shown = ShownBy(File());
  ASSERT_TRUE(shown.contains("decode-0"));
  const size_t steps = shown.at("decode-0").Of("step", -1).size();
  EXPECT_GE(steps, kTracedTokens - 1u);
  EXPECT_LT(steps, static_cast<size_t>(kMany - 1)) << "it was told to end";
}

TEST_F(TraceTest, StepsOverALinkShowWhatIsCopiedAndWhatIsRecomputed) {
  SyntheticModel model = SmallModel(kTracedLayers);
  model.kv_heads = model.heads;
  Start(model,
        {"--emulated-link-gbps", "20", "--kv-device-budget", "1MiB", "--recompute", "256", "--host-lane", "off"});
  const nlohmann::json answer = Generate(600, {"--trace"});
  ASSERT_FALSE(answer.is_discarded());
  TestProcess trace = Trace(answer.at("request_id"));
  ASSERT_EQ(trace.Wait(), 0) << trace.err();
  const std::map<std::string, ShownProcess> shown = ShownBy(File());
  const ShownProcess& decode = shown.at("decode-0");
  ExpectOneAfterTheOther("decode-0", decode);
  const std::vector<ShownSpan> steps = decode.Of("step", -1);
  ASSERT_EQ(steps.size(), kTracedTokens - 1u);
  for (int layer = 0; layer < kTracedLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    const std::vector<ShownSpan> transfers = decode.Of("transfer", layer), recomputed = decode.Of("recompute", layer);
    const std::vector<ShownSpan> attended = decode.Of("attend", layer);
    EXPECT_GE(transfers.size(), steps.size());
    ASSERT_EQ(recomputed.size(), steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_GE(recomputed[i].begin, steps[i].begin - kRounding) << i;
      EXPECT_LE(recomputed[i].end, steps[i].end + kRounding) << i;
    }
    // X comes first in a transfer, K and V that are made from it are attended to.
    EXPECT_LE(transfers.at(0).begin, recomputed[0].begin + kRounding);
    EXPECT_GE(attended.at(0).begin, recomputed[0].end - kRounding);
  }
}

TEST_F(TraceTest, WhatWasNotAskedForIsNotRecorded) {
  Start();
  const nlohmann::json answer = Generate(40, {});
  TestProcess trace = Trace(answer.at("request_id"));
  EXPECT_EQ(trace.Wait(), 1);
  EXPECT_THAT(trace.err(), HasSubstr("was not recorded"));
}

}  // namespace
}  // namespace runahead
