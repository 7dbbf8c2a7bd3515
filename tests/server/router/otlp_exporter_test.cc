#include "server/router/otlp_exporter.h"

#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/stub_collector.h"

namespace runahead {
namespace {

using testing::Await;
using testing::FakeClock;
using ::testing::HasSubstr;
using testing::StubCollector;

WholeTrace TraceNamed(const std::string& request_id) {
  WholeTrace whole;
  whole.trace.set_request_id(request_id);
  whole.trace.set_trace_id(std::string(32, 'a'));
  whole.trace.add_processes()->set_name("router");
  v1::TraceSpan& span = *whole.trace.mutable_processes(0)->add_spans();
  span.set_name("request");
  span.set_duration_ns(1000);
  whole.services = {"runahead-router"};
  whole.span = {std::string(32, 'a'), std::string(16, 'b'), true};
  return whole;
}

class OtlpExporterTest : public ::testing::Test {
 protected:
  void Start(const std::string& url, OtlpLimits limits = {}, const OtlpHeaders& headers = {}) {
    limits.flush = limits.answer = testing::LongestWait();
    exporter_ = std::make_unique<OtlpExporter>(*ParseOtlpEndpoint(url), headers, metrics_, clock_, limits);
  }
  void Offer(int first, int count) {
    for (int i = first; i < first + count; ++i) exporter_->Offer(TraceNamed(absl::StrCat("r-", i)));
  }
  double Counted(const std::string& result) const {
    return testing::Value(registry_, absl::StrCat("runahead_otlp_traces_total{result=\"", result, "\"}"));
  }
  // A little time passes at each look, so that nothing waits for the clock.
  [[nodiscard]] ::testing::AssertionResult Comes(const std::string& result, double count) {
    return Await(absl::StrCat(count, " are ", result), [&] {
      clock_.Advance(absl::Milliseconds(100));
      return Counted(result) == count;
    });
  }
  // Those whose spans have come; some may have come twice.
  static std::set<std::string> RequestsOf(const StubCollector& collector) {
    std::set<std::string> requests;
    for (const auto& span : collector.spans()) requests.insert(span.attributes.at("gen_ai.response.id"));
    return requests;
  }

  FakeClock clock_;
  MetricRegistry registry_{"none"};
  OtlpMetrics metrics_{registry_};
  std::unique_ptr<OtlpExporter> exporter_;
};

TEST_F(OtlpExporterTest, TracesGoTogetherASecondAfterTheFirst) {
  StubCollector collector;
  Start(collector.url());
  Offer(0, 3);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Milliseconds(999));
  clock_.AwaitWaiters(1);  // it has looked at the time
  EXPECT_EQ(collector.posts().size(), 0u);
  clock_.Advance(absl::Milliseconds(1));
  ASSERT_TRUE(Await("all are sent", [&] { return Counted("sent") == 3; }));
  const auto posts = collector.posts();
  ASSERT_FALSE(posts.empty());
  EXPECT_EQ(posts[0].get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(posts[0].get_header_value("Host"), absl::StrCat("127.0.0.1:", collector.port()));
  for (const char* id : {"\"r-0\"", "\"r-1\"", "\"r-2\""}) EXPECT_THAT(posts[0].body, HasSubstr(id));
  EXPECT_THAT(RequestsOf(collector), ::testing::ElementsAre("r-0", "r-1", "r-2"));
}

TEST_F(OtlpExporterTest, AFullBatchWaitsForNoTime) {
  StubCollector collector;
  Start(collector.url());
  Offer(0, OtlpExporter::kOtlpBatch);
  ASSERT_TRUE(Await("all are sent", [&] { return Counted("sent") == OtlpExporter::kOtlpBatch; }));
  EXPECT_EQ(RequestsOf(collector).size(), OtlpExporter::kOtlpBatch);
}

TEST_F(OtlpExporterTest, WhatIsRefusedForNowComesAgainWhenTheCollectorSays) {
  absl::Time first, second;
  StubCollector collector([&](size_t index, const std::string&, httplib::Response& response) {
    if (index > 0) {
      second = clock_.Now();
      return;
    }
    first = clock_.Now();
    response.status = 503;
    response.set_header("Retry-After", "7");
  });
  Start(collector.url());
  Offer(0, 1);
  ASSERT_TRUE(Comes("sent", 1));
  EXPECT_GE(second - first, absl::Seconds(7));
  const auto posts = collector.posts();
  ASSERT_GE(posts.size(), 2u);
  EXPECT_EQ(posts[0].body, posts[1].body) << "the same spans, so that whoever had them knows them again";
  EXPECT_EQ(Counted("failed"), 0);
  EXPECT_EQ(Counted("dropped"), 0);
}

TEST_F(OtlpExporterTest, ACollectorThatSaysAtOnceIsNotAskedWithoutEnd) {
  StubCollector collector([](size_t index, const std::string&, httplib::Response& response) {
    if (index > 0) return;
    response.status = 503;
    response.set_header("Retry-After", "0");
  });
  Start(collector.url());
  Offer(0, OtlpExporter::kOtlpBatch);
  ASSERT_TRUE(Await("the first post has come", [&] { return !collector.posts().empty(); }));
  clock_.AwaitWaiters(1);
  EXPECT_EQ(collector.posts().size(), 1u);
  clock_.Advance(absl::Milliseconds(999));
  clock_.AwaitWaiters(1);  // it has looked at the time
  EXPECT_EQ(collector.posts().size(), 1u);
  EXPECT_TRUE(Comes("sent", OtlpExporter::kOtlpBatch));
}

TEST_F(OtlpExporterTest, EachOfTheCodesThatMeanLaterIsTriedAgain) {
  const std::vector<int> codes = {429, 502, 503, 504};
  StubCollector collector([&](size_t index, const std::string&, httplib::Response& response) {
    if (index < codes.size()) response.status = codes[index];
  });
  Start(collector.url());
  Offer(0, 1);
  ASSERT_TRUE(Comes("sent", 1));
  EXPECT_GE(collector.posts().size(), codes.size() + 1);
}

TEST_F(OtlpExporterTest, WhatIsRefusedForGoodIsCountedAndTheNextOnesGoOn) {
  StubCollector collector([](size_t, const std::string& body, httplib::Response& response) {
    if (body.find("\"r-0\"") != std::string::npos) response.status = 400;
  });
  Start(collector.url());
  Offer(0, 2);
  ASSERT_TRUE(Comes("failed", 2));
  Offer(2, 1);
  ASSERT_TRUE(Comes("sent", 1));
  EXPECT_THAT(RequestsOf(collector), ::testing::ElementsAre("r-0", "r-1", "r-2"));
  EXPECT_EQ(Counted("failed"), 2) << "they were not sent again";
}

// Each kind of trouble has a line of its own, however often another one has just been said.
TEST_F(OtlpExporterTest, EachTroubleIsSaid) {
  StubCollector collector([](size_t index, const std::string& body, httplib::Response& response) {
    const bool partly = body.find("\"r-3\"") != std::string::npos;
    if (partly) response.set_content(R"({"partialSuccess":{"rejectedSpans":"1"}})", "application/json");
    if (!partly) response.status = index == 0 ? 503 : 400;
  });
  ::testing::internal::CaptureStderr();
  Start(collector.url(), {.traces = 3});
  Offer(0, 3);
  Offer(99, 1);
  const bool all = Comes("dropped", 1) && Comes("failed", 3);
  Offer(3, 1);
  const bool partly = Comes("sent", 1);
  exporter_->Stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(all && partly);
  EXPECT_THAT(log, HasSubstr("takes no traces now, and is asked again: it answers 503"));
  EXPECT_THAT(log, HasSubstr("is dropped: too many wait"));
  EXPECT_THAT(log, HasSubstr("refused traces: it answers 400"));
  EXPECT_THAT(log, HasSubstr("took traces in part: it took the traces but for 1 spans"));
}

TEST_F(OtlpExporterTest, WhatComesWhileTheCollectorTakesNoneWaitsWhileThereIsRoomAndIsDroppedBehindThat) {
  StubCollector collector([](size_t index, const std::string&, httplib::Response& response) {
    if (index == 0) response.status = 503;
  });
  Start(collector.url(), {.traces = 10});
  Offer(0, 1);
  ASSERT_TRUE(Await("the first post has come", [&] {
    clock_.Advance(absl::Milliseconds(100));
    return !collector.posts().empty();
  }));
  Offer(1, 10);
  EXPECT_EQ(Counted("dropped"), 0);
  Offer(11, 5);
  EXPECT_EQ(Counted("dropped"), 5);
  ASSERT_TRUE(Comes("sent", 11)) << "the others wait";
  EXPECT_EQ(Counted("failed"), 0);
}

TEST_F(OtlpExporterTest, TheMemoryOfThoseThatWaitIsBoundedToo) {
  StubCollector collector;
  WholeTrace large = TraceNamed("large");
  for (int i = 0; i < 1000; ++i) large.trace.mutable_processes(0)->add_spans()->set_name("a span of the router");
  Start(collector.url(), {.bytes = 10000});
  exporter_->Offer(large);
  EXPECT_EQ(Counted("dropped"), 1);
  Offer(0, 1);
  ASSERT_TRUE(Comes("sent", 1));
}

TEST_F(OtlpExporterTest, WhatWaitsIsSentAtTheEnd) {
  StubCollector collector;
  Start(collector.url());
  Offer(0, 100);
  exporter_->Stop();
  EXPECT_EQ(Counted("sent"), 100);
  EXPECT_EQ(RequestsOf(collector).size(), 100u);
  Offer(100, 1);
  EXPECT_EQ(Counted("dropped"), 1) << "there is nobody to send it";
}

TEST_F(OtlpExporterTest, WhatWaitsForAnotherTryHasOneAtTheEnd) {
  StubCollector collector([](size_t index, const std::string&, httplib::Response& response) {
    if (index == 0) response.status = 503;
  });
  Start(collector.url());
  Offer(0, OtlpExporter::kOtlpBatch);
  ASSERT_TRUE(Await("the first post has come", [&] { return !collector.posts().empty(); }));
  exporter_->Stop();
  EXPECT_EQ(Counted("sent"), OtlpExporter::kOtlpBatch);
}

TEST_F(OtlpExporterTest, ACollectorThatIsGoneHoldsUpNoEnd) {
  StubCollector gone;
  gone.Close();
  ::testing::internal::CaptureStderr();
  Start(gone.url());
  Offer(0, 200);
  exporter_->Stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(Counted("dropped"), 200) << "none is lost silently";
  EXPECT_THAT(log, HasSubstr("200 traces are dropped: the router ends"));
}

TEST_F(OtlpExporterTest, AnEndAtWhichAllIsSentSaysNothing) {
  StubCollector collector;
  ::testing::internal::CaptureStderr();
  Start(collector.url());
  Offer(0, 3);
  exporter_->Stop();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(OtlpExporterTest, ANameServerThatDoesNotAnswerHoldsUpNoEnd) {
  const auto asked = std::make_shared<std::promise<void>>();
  std::promise<void> answered;
  const HostLookup::Resolver silent =
      [asked, answer = answered.get_future().share()](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
    asked->set_value();
    answer.wait();
    return std::vector<std::string>{"127.0.0.1"};
  };
  OtlpLimits limits;
  limits.flush = absl::Milliseconds(1);
  limits.answer = testing::LongestWait();
  exporter_ = std::make_unique<OtlpExporter>(*ParseOtlpEndpoint("http://collector.example:4318"), OtlpHeaders(),
                                             metrics_, clock_, limits, silent);
  Offer(0, OtlpExporter::kOtlpBatch);
  asked->get_future().wait();
  exporter_->Stop();
  exporter_.reset();
  EXPECT_EQ(Counted("dropped"), OtlpExporter::kOtlpBatch);
  answered.set_value();  // whoever waited for it is gone
}

TEST_F(OtlpExporterTest, HeadersGoWithThem) {
  StubCollector collector;
  Start(collector.url(), {}, {{"Authorization", "Bearer abc"}, {"x-scope-orgid", "team"}});
  Offer(0, 1);
  exporter_->Stop();
  const auto posts = collector.posts();
  ASSERT_FALSE(posts.empty());
  EXPECT_EQ(posts[0].get_header_value("Authorization"), "Bearer abc");
  EXPECT_EQ(posts[0].get_header_value("X-Scope-OrgID"), "team");
}

}  // namespace
}  // namespace runahead
