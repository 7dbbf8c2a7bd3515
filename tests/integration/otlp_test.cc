// A request whose caller traces it, over real processes: its spans are with the collector that the router was told of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/stub_collector.h"

namespace runahead {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::StubCollector;

constexpr char kOtlpTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kOtlpCaller[] = "b7ad6b7169203331";
// Stands in the prompt, and nowhere else.
constexpr char kOtlpMarker[] = "zanzibar";

class OtlpTest : public ::testing::Test {
 protected:
  void Start(const std::string& endpoint) {
    cluster_ = std::make_unique<LocalCluster>(
        WriteSynthetic(SmallModel(2), "otlp_test"),
        std::vector<std::string>{"--prefill", "2", "--decode", "1", "--threads", "1", "--dtype", "f32", "--trace",
                                 "asked", "--otlp-endpoint", endpoint, "--experiments"});
  }
  Answer GenerateTraced() {
    v1::GenerateRequest request;
    std::string prompt = kOtlpMarker;
    for (int i = 0; i < 100; ++i) absl::StrAppend(&prompt, " and ", i);
    request.set_prompt(prompt);
    request.set_request_id("traced");
    request.mutable_experiment()->set_width(2);
    request.mutable_stop()->set_max_tokens(4);
    request.mutable_stop()->set_ignore_eos(true);
    grpc::ClientContext context;
    context.AddMetadata("traceparent", absl::StrCat("00-", kOtlpTraceId, "-", kOtlpCaller, "-01"));
    return cluster_->Generate(request, &context);
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(OtlpTest, TheCallersTraceHasTheRequestsSpansOfAllProcesses) {
  StubCollector collector;
  Start(collector.url());
  const Answer answer = GenerateTraced();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(Eventually([&] { return !collector.posts().empty(); })) << cluster_->Log();

  std::string root;
  std::map<std::string, std::string> service, id_of, parent_of;  // by worker
  std::set<std::string> details;
  for (const testing::CollectedSpan& span : collector.spans()) {
    EXPECT_EQ(span.trace_id, kOtlpTraceId);
    if (span.parent_id == kOtlpCaller) {
      EXPECT_TRUE(root.empty() || root == span.id) << "one span for the request, though a post may come twice";
      root = span.id;
      EXPECT_THAT(span.name, HasSubstr("text_completion "));
      EXPECT_EQ(span.attributes.at("gen_ai.response.id"), "traced");
      EXPECT_EQ(span.attributes.at("gen_ai.usage.input_tokens"), absl::StrCat(answer.started.prompt_tokens()));
      EXPECT_EQ(span.attributes.at("gen_ai.usage.output_tokens"), "4");
    } else if (span.name == span.instance) {
      service[span.name] = span.service;
      id_of[span.name] = span.id;
      parent_of[span.name] = span.parent_id;
    } else {
      details.insert(absl::StrCat(span.instance, " ", span.name));
    }
  }
  ASSERT_FALSE(root.empty());
  EXPECT_EQ(service, (std::map<std::string, std::string>{{"decode-0", "runahead-decode"},
                                                         {"prefill-0", "runahead-prefill"},
                                                         {"prefill-1", "runahead-prefill"}}));
  for (const auto& [worker, parent] : parent_of) EXPECT_EQ(parent, root) << worker;
  for (const char* detail :
       {"router prefill", "router decode", "prefill-0 qkv", "prefill-1 receive", "decode-0 step"}) {
    EXPECT_THAT(details, Contains(detail));
  }
  for (const testing::CollectedSpan& span : collector.spans()) {
    const auto worker = id_of.find(span.instance);
    if (worker == id_of.end() || worker->first == span.name) continue;
    EXPECT_EQ(span.parent_id, worker->second);
  }
  for (const auto& post : collector.posts()) EXPECT_THAT(post.body, Not(HasSubstr(kOtlpMarker)));
  // The router counts it when it has read the answer.
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Metric("router", "runahead_otlp_traces_total{result=\"sent\"}") >= 1;
  })) << cluster_->Log();
}

TEST_F(OtlpTest, ARouterThatEndsSendsWhatItHas) {
  StubCollector collector;
  Start(collector.url());
  ASSERT_TRUE(GenerateTraced().status.ok());
  cluster_.reset();
  EXPECT_FALSE(collector.spans().empty());
}

TEST_F(OtlpTest, ACollectorThatIsGoneIsNobodysTrouble) {
  StubCollector collector;
  Start(collector.url());
  collector.Close();
  for (int i = 0; i < 3; ++i) {
    const Answer answer = GenerateTraced();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  }
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Log().find("takes no traces now, and is asked again") != std::string::npos;
  })) << cluster_->Log();
}

}  // namespace
}  // namespace runahead
