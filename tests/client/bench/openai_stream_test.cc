#include "client/bench/openai_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

bool Brings(const std::string& data) {
  OpenAiStream stream;
  const auto added = stream.Add(data);
  EXPECT_TRUE(added.ok()) << data << ": " << added.status();
  return added.ok() && *added;
}

TEST(OpenAiStream, TokensAreTextOfAnyKindAndNotARole) {
  EXPECT_TRUE(Brings(R"({"choices": [{"index": 0, "text": "a", "finish_reason": null}]})"));
  EXPECT_TRUE(Brings(R"({"choices": [{"text": "", "finish_reason": null}]})")) << "a part of a character";
  EXPECT_TRUE(Brings(R"({"choices": [{"text": "a", "finish_reason": "length"}]})"));
  EXPECT_FALSE(Brings(R"({"choices": [{"text": "", "finish_reason": "stop"}]})"));
  EXPECT_TRUE(Brings(R"({"choices": [{"delta": {"content": "a"}}]})"));
  EXPECT_TRUE(Brings(R"({"choices": [{"delta": {"reasoning_content": "hm"}}]})"));
  EXPECT_TRUE(Brings(R"({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})"));
  EXPECT_FALSE(Brings(R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})"));
  EXPECT_FALSE(Brings(R"({"choices": [{"delta": {"role": "assistant", "content": null}}]})"));
  EXPECT_FALSE(Brings(R"({"choices": [{"delta": {}, "finish_reason": "stop"}]})"));
  EXPECT_FALSE(Brings(R"({"choices": []})"));
}

TEST(OpenAiStream, WhatIsOfAnotherKindIsNoToken) {
  for (const char* const odd :
       {"{}", R"({"choices": 5})", R"({"choices": [5]})", R"({"choices": [null]})", R"({"choices": {"0": 1}})",
        R"({"choices": [{"delta": "x"}]})", R"({"choices": [{"delta": {"content": {"a": 1}}}]})",
        R"({"choices": [{"text": 7}], "usage": [1]})", R"({"usage": {"completion_tokens": "many"}})",
        R"({"usage": {"completion_tokens": -4, "prompt_tokens": 1e300}})"}) {
    EXPECT_FALSE(Brings(odd)) << odd;
  }
}

TEST(OpenAiStream, UsageIsTakenWhereItComes) {
  OpenAiStream stream;
  EXPECT_FALSE(stream.counts().output_tokens.has_value());
  ASSERT_TRUE(
      stream.Add(R"({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})").ok());
  ASSERT_TRUE(stream.Add(R"({"choices": [{"text": "b"}], "usage": null})").ok());
  ASSERT_TRUE(stream
                  .Add(R"({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                           "prompt_tokens_details": {"cached_tokens": 4}}})")
                  .ok());
  EXPECT_EQ(stream.counts().input_tokens, 9);
  EXPECT_EQ(stream.counts().output_tokens, 3);
  EXPECT_EQ(stream.counts().cached_tokens, 4);
}

TEST(OpenAiStream, EndsWithDoneOnly) {
  OpenAiStream stream;
  ASSERT_TRUE(stream.Add(R"({"choices": [{"text": "a", "finish_reason": "stop"}]})").ok());
  EXPECT_TRUE(absl::IsUnavailable(stream.End())) << stream.End();
  ASSERT_TRUE(stream.Add("[DONE]").ok());
  EXPECT_TRUE(stream.End().ok());
  const auto behind = stream.Add("garbage");
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_FALSE(*behind);
}

TEST(OpenAiStream, GarbageAndErrorsEndIt) {
  for (const auto& [data, says] : std::vector<std::pair<std::string, std::string>>{
           {"{\"choices\": [", "no JSON object"},
           {"[]", "no JSON object"},
           {"\xff\xfe\n", "\\xff"},
           {std::string(100'000, '['), "no JSON object"},
           {R"({"error": {"message": "out of\nmemory", "code": 500}})", "out of"},
           {R"({"error": "no"})", "says: no"},
           {R"({"error": {"code": 3}})", "an error"}}) {
    OpenAiStream stream;
    const auto added = stream.Add(data);
    EXPECT_TRUE(absl::IsInternal(added.status())) << added.status();
    EXPECT_THAT(added.status().message(), HasSubstr(says));
    EXPECT_LT(added.status().message().size(), 3000u);
    EXPECT_EQ(added.status().message().find('\n'), absl::string_view::npos);
  }
}

TEST(HttpFailure, SaysWhatTheServerSays) {
  EXPECT_EQ(HttpFailure(429, R"({"error": {"message": "try later", "type": "x"}})"),
            absl::ResourceExhaustedError("HTTP 429: try later"));
  EXPECT_EQ(HttpFailure(503, "no workers\n"), absl::UnavailableError("HTTP 503: no workers"));
  EXPECT_EQ(HttpFailure(400, R"({"object": "error", "message": "bad"})"), absl::InvalidArgumentError("HTTP 400: bad"));
  EXPECT_EQ(HttpFailure(404, R"({"detail": "Not Found"})"), absl::NotFoundError("HTTP 404: Not Found"));
  EXPECT_EQ(HttpFailure(500, ""), absl::InternalError("HTTP 500"));
  EXPECT_EQ(HttpFailure(302, "\xff"), absl::InternalError("HTTP 302: \\xff"));
}

}  // namespace
}  // namespace runahead
