#include "server/router/otlp_post.h"

#include <httplib.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/await.h"
#include "tests/testing/stub_collector.h"
#include "tests/testing/test_ca.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::LongestWait;
using testing::StubCollector;

TEST(OtlpPost, SpansThatTheCollectorDidNotTakeAreSaid) {
  StubCollector collector([](size_t, const std::string&, httplib::Response& response) {
    response.set_content(R"({"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}})", "application/json");
  });
  OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
  const OtlpAnswer answer = post.Send("{}", LongestWait());
  EXPECT_EQ(answer.result, OtlpResult::kTaken);
  EXPECT_EQ(answer.why, "it took the traces but for 2 spans: too old");
}

TEST(OtlpPost, AnAnswerThatIsNoneOfOtlpsTookThem) {
  for (const char* body :
       {"", "[]", "{", "\"\"", R"({"partialSuccess":{}})", R"({"partialSuccess":[]})",
        R"({"partialSuccess":{"rejectedSpans":"0"}})", R"({"partialSuccess":{"rejectedSpans":0}})"}) {
    StubCollector collector([&](size_t, const std::string&, httplib::Response& response) {
      response.set_content(body, "application/json");
    });
    OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
    const OtlpAnswer answer = post.Send("{}", LongestWait());
    EXPECT_EQ(answer.result, OtlpResult::kTaken) << body;
    EXPECT_EQ(answer.why, "") << body;
  }
}

TEST(OtlpPost, WhatIsNoErrorTookThem) {
  for (const int status : {200, 202, 204, 299, 199, 300, 304, 400, 500, 503}) {
    StubCollector collector([&](size_t, const std::string&, httplib::Response& response) { response.status = status; });
    OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
    const OtlpAnswer answer = post.Send("{}", LongestWait());
    EXPECT_EQ(answer.result == OtlpResult::kTaken, status / 100 == 2) << status << ": " << answer.why;
  }
}

TEST(OtlpPost, OfALongAnswerTheStatusCounts) {
  const std::map<int, OtlpResult> expected = {
      {200, OtlpResult::kTaken}, {404, OtlpResult::kRefused}, {503, OtlpResult::kLater}};
  for (const auto& [status, result] : expected) {
    StubCollector collector([status = status](size_t, const std::string&, httplib::Response& response) {
      response.status = status;
      response.set_header("Retry-After", "7");
      response.set_content(std::string(1 << 20, 'x'), "text/html");
    });
    OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
    const OtlpAnswer answer = post.Send("{}", LongestWait());
    EXPECT_EQ(answer.result, result) << status << ": " << answer.why;
    EXPECT_EQ(answer.after.has_value(), status == 503);
  }
}

// Each byte comes in time.
TEST(OtlpPost, AnAnswerThatDoesNotEndIsCutOff) {
  std::atomic<bool> over = false;
  StubCollector collector([&](size_t, const std::string&, httplib::Response& response) {
    response.body.clear();
    response.set_content_provider("text/plain", [&](size_t, httplib::DataSink& sink) {
      absl::SleepFor(absl::Milliseconds(2));
      return !over && sink.write("x", 1);
    });
  });
  OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
  // Again where the first byte was late, which is not what this is about.
  EXPECT_TRUE(testing::Await("the status counts, and nothing behind it is waited for",
                             [&] { return post.Send("{}", absl::Milliseconds(500)).result == OtlpResult::kTaken; }));
  over = true;
}

TEST(OtlpPost, WhatNobodyAnswersIsForAnotherTime) {
  StubCollector collector;
  OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
  collector.Close();
  const OtlpAnswer answer = post.Send("{}", LongestWait());
  EXPECT_EQ(answer.result, OtlpResult::kLater);
  EXPECT_THAT(answer.why, HasSubstr("no answer: "));
}

// As "localhost" has an IPv6 address at which a collector need not listen.
TEST(OtlpPost, OfSeveralAddressesTheFirstThatTakesAConnectionGetsThem) {
  StubCollector collector;
  const OtlpEndpoint endpoint = *ParseOtlpEndpoint(absl::StrCat("http://collector.example:", collector.port()));
  OtlpPost post(endpoint, {}, [](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
    EXPECT_EQ(host, "collector.example");
    return std::vector<std::string>{"127.0.0.2", "127.0.0.1"};
  });
  const OtlpAnswer answer = post.Send("{}", LongestWait());
  EXPECT_EQ(answer.result, OtlpResult::kTaken) << answer.why;
  const auto posts = collector.posts();
  ASSERT_FALSE(posts.empty());
  EXPECT_EQ(posts[0].get_header_value("Host"), absl::StrCat("collector.example:", collector.port()));
}

TEST(OtlpPost, AHostThatHasNoAddressIsForAnotherTime) {
  OtlpPost post(*ParseOtlpEndpoint("http://collector.example:4318"), {},
                [](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
                  return absl::NotFoundError("Name or service not known");
                });
  const OtlpAnswer answer = post.Send("{}", LongestWait());
  EXPECT_EQ(answer.result, OtlpResult::kLater);
  EXPECT_EQ(answer.why, "no address: Name or service not known");
}

TEST(OtlpPost, OneThatIsUnderWayEndsWhenItIsCutAndNoneFollows) {
  std::atomic<bool> over = false;
  StubCollector collector([&](size_t, const std::string&, httplib::Response&) {
    EXPECT_TRUE(testing::Await("the post is over", [&] { return over.load(); }));
  });
  OtlpPost post(*ParseOtlpEndpoint(collector.url()), {});
  OtlpAnswer answer;
  std::thread thread([&] {
    answer = post.Send("{}", 2 * LongestWait());
    over = true;
  });
  EXPECT_TRUE(testing::Await("the post has come", [&] { return !collector.posts().empty(); }));
  post.Cut();
  thread.join();
  EXPECT_EQ(answer.result, OtlpResult::kLater);
  EXPECT_EQ(post.Send("{}", LongestWait()).why, "the router ends");
  EXPECT_EQ(collector.posts().size(), 1u);
}

TEST(OtlpPost, HttpsIsSpokenWithWhoHasACertificateOfTheSystemsAuthorities) {
  const testing::TestCa authority;
  const testing::TlsFolder folder("otlp_post_test", authority.Sign(), authority.cert());
  httplib::SSLServer server(folder.files().cert.c_str(), folder.files().key.c_str());
  server.Post("/v1/traces", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("{}", "application/json");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { server.listen_after_bind(); });
  EXPECT_TRUE(testing::Await("the collector listens", [&] { return server.is_running(); }));
  const OtlpEndpoint endpoint = *ParseOtlpEndpoint(absl::StrCat("https://127.0.0.1:", port));
  unsetenv("SSL_CERT_FILE");
  EXPECT_EQ(OtlpPost(endpoint, {}).Send("{}", LongestWait()).result, OtlpResult::kLater) << "anybody may be it";
  setenv("SSL_CERT_FILE", folder.files().ca.c_str(), /*overwrite=*/1);
  const OtlpAnswer answer = OtlpPost(endpoint, {}).Send("{}", LongestWait());
  EXPECT_EQ(answer.result, OtlpResult::kTaken) << answer.why;
  unsetenv("SSL_CERT_FILE");
  server.stop();
  thread.join();
}

}  // namespace
}  // namespace runahead
