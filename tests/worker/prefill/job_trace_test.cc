// What the stage records of a job that is traced, and that it does nothing for one that is not.
#include "worker/prefill/job_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "tests/testing/wrapping_device.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

class JobTraceTest : public StageTest {
 protected:
  // Runs the prompt on a chain that is traced, and returns what each member recorded.
  std::vector<std::vector<RecordedSpan>> RunTraced(TestChain& chain, const std::vector<int64_t>& bounds,
                                                   Schedule schedule = Schedule::kKvr, int64_t x_tokens = 0) {
    const std::vector<int32_t> ids = RandomIds(bounds.back(), 320, 3);
    std::vector<std::shared_ptr<SpanRecorder>> recorders;
    const int parts = static_cast<int>(bounds.size()) - 1;
    for (int part = 0; part < parts; ++part) {
      PrefillJob job = chain.JobOf(1, 0, part, bounds, ids, {}, true, absl::InfiniteFuture(), schedule);
      job.x_tokens = x_tokens;
      job.spans = std::make_shared<SpanRecorder>();
      recorders.push_back(job.spans);
      chain.member(part).stage->Start(std::move(job));
    }
    std::vector<std::vector<RecordedSpan>> spans;
    for (int part = 0; part < parts; ++part) {
      EXPECT_TRUE(chain.member(part).news.AwaitDone(1).ok());
      spans.push_back(recorders[part]->Take().spans);
    }
    return spans;
  }
};

using Counts = std::map<std::string, int64_t>;

Counts CountOf(const std::vector<RecordedSpan>& spans, int64_t layer) {
  Counts counts;
  for (const RecordedSpan& span : spans) {
    if (span.layer == layer && std::string(span.name) != "wait") ++counts[span.name];
  }
  return counts;
}

TEST_F(JobTraceTest, EveryMemberRecordsEveryLayer) {
  TestChain chain(loaded_, 3, 120);
  const auto spans = RunTraced(chain, {0, 50, 90, 120}, Schedule::kKvr, /*x_tokens=*/60);
  for (int64_t layer = 0; layer < layers(); ++layer) {
    SCOPED_TRACE(layer);
    Counts head = {{"qkv", 1}, {"attention", 1}, {"mlp", 1}, {"send", 1}, {"handoff", 1}, {"x_handoff", 1}};
    Counts middle = head, tail = head;
    middle["receive"] = middle["forward"] = 1;
    tail["receive"] = 2;  // its parts come piece by piece
    tail.erase("send");
    tail.erase("x_handoff");  // of its tokens none is handed off as X
    if (layer + 1 == layers()) {
      // Their last rows matter for KV alone.
      for (Counts* counts : {&head, &middle}) counts->erase("attention"), counts->erase("mlp");
    }
    EXPECT_EQ(CountOf(spans[0], layer), head);
    EXPECT_EQ(CountOf(spans[1], layer), middle);
    EXPECT_EQ(CountOf(spans[2], layer), tail);
  }
  EXPECT_EQ(CountOf(spans[0], -1), (Counts{{"queue", 1}}));
  EXPECT_EQ(CountOf(spans[2], -1), (Counts{{"queue", 1}, {"sample", 1}}));
}

TEST_F(JobTraceTest, AmountsAreTokensOrBytes) {
  TestChain chain(loaded_, 2, 120);  // with room for X
  const auto spans = RunTraced(chain, {0, 40, 60}, Schedule::kKvr, /*x_tokens=*/10);
  const int64_t row = loaded_.model->kv_row_bytes(), x_row = 4 * loaded_.model->config().hidden;
  const std::map<std::string, int64_t> head = {{"qkv", 40},        {"attention", 40},     {"mlp", 40},
                                               {"send", 40 * row}, {"handoff", 40 * row}, {"x_handoff", 10 * x_row},
                                               {"queue", 0}};
  for (const RecordedSpan& span : spans[0]) EXPECT_EQ(span.amount, head.at(span.name)) << span.name;
  for (const RecordedSpan& span : spans[1]) {
    if (std::string(span.name) == "receive") {
      EXPECT_EQ(span.amount, 40 * row);
    }
    if (std::string(span.name) == "sample") {
      EXPECT_EQ(span.amount, 1);
    }
  }
}

// In the order in which they must happen, and one after the other where one thing does them.
TEST_F(JobTraceTest, SpansStandInTheOrderOfTheLayer) {
  for (const Schedule schedule : {Schedule::kKvr, Schedule::kTspCausal}) {
    TestChain chain(loaded_, 3, 300);
    const auto spans = RunTraced(chain, {0, 100, 200, 300}, schedule);
    for (const auto& of_member : spans) {
      std::vector<RecordedSpan> compute;
      std::map<int64_t, std::map<std::string, RecordedSpan>> layers;
      for (const RecordedSpan& span : of_member) {
        const std::string name = span.name;
        if (name == "qkv" || name == "wait" || name == "attention" || name == "mlp" || name == "sample") {
          compute.push_back(span);
        }
        layers[span.layer].emplace(name, span);
      }
      std::sort(compute.begin(), compute.end(),
                [](const RecordedSpan& a, const RecordedSpan& b) { return a.start_ns < b.start_ns; });
      for (size_t i = 1; i < compute.size(); ++i) {
        EXPECT_LE(compute[i - 1].start_ns + compute[i - 1].duration_ns, compute[i].start_ns)
            << compute[i - 1].name << " and " << compute[i].name << " of layer " << compute[i].layer;
      }
      for (const auto& [layer, named] : layers) {
        const auto ready = named.find("qkv");
        if (ready == named.end()) continue;
        const int64_t made = ready->second.start_ns + ready->second.duration_ns;
        for (const char* name : {"send", "handoff"}) {
          if (named.contains(name)) {
            EXPECT_GE(named.at(name).start_ns, made) << name << " of layer " << layer;
          }
        }
        if (named.contains("attention") && named.contains("receive")) {
          const RecordedSpan& receive = named.at("receive");
          EXPECT_GE(named.at("attention").start_ns, receive.start_ns + receive.duration_ns);
        }
      }
    }
  }
}

class CallCountingDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  void Call(Stream& stream, std::function<void()> function) override {
    ++calls;
    WrappingDevice::Call(stream, std::move(function));
  }
  std::atomic<int64_t> calls = 0;
};

TEST_F(JobTraceTest, NothingIsEnqueuedForAJobThatIsNotTraced) {
  CallCountingDevice device(loaded_.device);
  KeepingHandoff handoff;
  NewsBoard news;
  PrefillStageOptions options;
  options.memory_bytes = static_cast<size_t>(2 * layers() * 60 * loaded_.model->kv_row_bytes());
  const auto stage = *PrefillStage::Create(options, device, loaded_.model, handoff, news);
  const auto calls = [&](JobId id, std::shared_ptr<SpanRecorder> spans) {
    PrefillJob job;
    job.id = id;
    job.bounds = {0, 60};
    job.ids = RandomIds(60, 320, 4);
    job.spans = std::move(spans);
    device.calls = 0;
    stage->Start(std::move(job));
    EXPECT_TRUE(news.AwaitDone(id).ok());
    return device.calls.load();
  };
  const int64_t untraced = calls(1, nullptr);
  const int64_t traced = calls(2, std::make_shared<SpanRecorder>());
  EXPECT_EQ(traced - untraced, 5 * layers()) << "QKV, attention and the layer's end";
  EXPECT_EQ(untraced, 0);
}

}  // namespace
}  // namespace runahead
