#include "client/bench/openai_body.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace runahead {
namespace {

using Json = nlohmann::json;

TEST(OpenAiBody, APromptIsATextOrIds) {
  const Json text = Json::parse(OpenAiBody({.prompt = "\"One\" two", .max_tokens = 9}, "m"));
  EXPECT_EQ(text, Json::parse(R"({"model": "m", "prompt": "\"One\" two", "max_tokens": 9, "temperature": 0,
                                  "stream": true, "stream_options": {"include_usage": true}})"));
  const Json ids = Json::parse(OpenAiBody({.ids = {5, 6}, .max_tokens = 9, .ignore_eos = true}, "m"));
  EXPECT_EQ(ids["prompt"], Json::parse("[5, 6]"));
  EXPECT_EQ(ids["ignore_eos"], true);
}

TEST(OpenAiBody, AChatHasMessages) {
  BenchRequest request = {.prompt = "Hello", .max_tokens = 2};
  MakeChat(request);
  const Json chat = Json::parse(OpenAiBody(request, "m"));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role": "user", "content": "Hello"}])"));
  EXPECT_FALSE(chat.contains("prompt"));
}

}  // namespace
}  // namespace runahead
