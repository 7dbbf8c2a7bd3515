#include "server/router/session_report.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/router/tracer.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;

// Of a request whose answer takes one second a step.
class SessionReportTest : public ::testing::Test {
 protected:
  void Step() { clock_.Advance(absl::Seconds(1)); }
  void Begin() {
    Step();
    report_.Lap(TtftStage::kQueue);
    Step();
    report_.Lap(TtftStage::kPrefill);
  }
  void TakeToken() {
    Step();
    report_.Tokens(1);
    if (report_.tokens() > 1) return;
    report_.Lap(TtftStage::kFirstToken);
    report_.FirstToken(5, 1);
  }
  void FailDecode() {
    Step();
    report_.DecodeFailed();
  }
  // Each span of these names, as `name first..end`, in seconds.
  std::vector<std::string> Spans() {
    report_.EndTrace({.prompt_tokens = 5});
    std::vector<std::string> spans;
    const absl::StatusOr<v1::Trace> trace = tracer_->Get("r");
    if (!trace.ok()) return {trace.status().ToString()};
    const auto& told = trace->processes(0).spans();
    int64_t begin = 0;
    for (const v1::TraceSpan& span : told) {
      if (span.name() == "request") begin = span.start_ns();
    }
    for (const v1::TraceSpan& span : told) {
      if (span.name() != "decode" && span.name() != "rebuild") continue;
      const int64_t from = (span.start_ns() - begin) / 1000000000;
      spans.push_back(absl::StrCat(span.name(), " ", from, "..", from + span.duration_ns() / 1000000000));
    }
    return spans;
  }

  FakeClock clock_;
  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  const std::shared_ptr<Tracer> tracer_ = Tracer::Create(TraceMode::kAll, 4);
  SessionReport report_{metrics_, clock_, clock_.Now(), tracer_->Begin("r", std::nullopt, clock_.Now()), std::nullopt};
};

// Was: of a request that went on behind output_ids it was `queue`, which the next attempt begins with.
TEST_F(SessionReportTest, ADecodeThatFailsBeforeTheFirstTokenIsTimeOfThePrefill) {
  Begin();
  FailDecode();
  Begin();
  TakeToken();
  const v1::Timing timing = report_.Finish();
  EXPECT_EQ(timing.stages().at("queue"), 2);
  EXPECT_EQ(timing.stages().at("prefill"), 3);
  EXPECT_EQ(timing.ttft_s(), 6);
  EXPECT_THAT(Spans(), ElementsAre("decode 2..3", "decode 6..6")) << "nothing of it is built anew";
}

TEST_F(SessionReportTest, ARebuildLastsUntilTheNextToken) {
  Begin();
  TakeToken();
  FailDecode();
  Begin();
  TakeToken();
  Step();
  EXPECT_THAT(Spans(), ElementsAre("decode 3..4", "rebuild 4..7", "decode 6..8"));
}

// Was: what it waited then was drawn as decode.
TEST_F(SessionReportTest, ARebuildThatIsGivenUpIsNoDecode) {
  Begin();
  TakeToken();
  FailDecode();
  Begin();
  Step();
  EXPECT_THAT(Spans(), ElementsAre("decode 3..4", "rebuild 4..7"));
}

TEST_F(SessionReportTest, WhoEndsInTheQueueHasNotDecoded) {
  Begin();
  Step();
  EXPECT_THAT(Spans(), ElementsAre());
}

}  // namespace
}  // namespace runahead
