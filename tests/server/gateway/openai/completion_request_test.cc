// Completions as calls.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/openai/calls.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const DoorFacts kServed{"tiny", {}};

OpenAiCalls ReadCompletion(const std::string& members) {
  const absl::StatusOr<OpenAiCalls> calls = ReadCompletionRequest(absl::StrCat("{", members, "}"), kServed);
  EXPECT_TRUE(calls.ok()) << calls.status() << " of " << members;
  return calls.value_or(OpenAiCalls());
}

TEST(CompletionRequest, TheLeastTakesTheDefaultsOfTheField) {
  const OpenAiCalls calls = ReadCompletion(R"("prompt":"Once")");
  ASSERT_THAT(calls.calls, SizeIs(1));
  EXPECT_EQ(calls.calls[0].ShortDebugString(), "prompt: \"Once\" sampling { temperature: 1 } stop { max_tokens: 16 }");
  EXPECT_FALSE(calls.chat || calls.stream || calls.logprobs);
  EXPECT_EQ(calls.choices_per_prompt, 1);
  EXPECT_EQ(calls.model, "tiny");
  EXPECT_THAT(calls.ignored, IsEmpty());
}

TEST(CompletionRequest, PromptsOfEachForm) {
  const auto inputs = [](const std::string& prompt) {
    std::vector<std::string> inputs;
    for (v1::GenerateRequest call : ReadCompletion(absl::StrCat("\"prompt\":", prompt)).calls) {
      call.clear_sampling();
      call.clear_stop();
      inputs.push_back(call.ShortDebugString());
    }
    return inputs;
  };
  EXPECT_THAT(inputs("\"a\""), ElementsAre("prompt: \"a\""));
  EXPECT_THAT(inputs("\"\""), ElementsAre("prompt: \"\""));  // the router says that it is empty
  EXPECT_THAT(inputs("[\"a\",\"b\"]"), ElementsAre("prompt: \"a\"", "prompt: \"b\""));
  EXPECT_THAT(inputs("[1,2,3]"), ElementsAre("token_ids { ids: 1 ids: 2 ids: 3 }"));
  EXPECT_THAT(inputs("[[1],[2,3]]"), ElementsAre("token_ids { ids: 1 }", "token_ids { ids: 2 ids: 3 }"));
}

TEST(CompletionRequest, ChoicesOfAPromptStandTogether) {
  const OpenAiCalls calls = ReadCompletion(R"("prompt":["a","b"],"n":2,"seed":9)");
  ASSERT_THAT(calls.calls, SizeIs(2));
  EXPECT_EQ(calls.choices_per_prompt, 2);
  for (const v1::GenerateRequest& call : calls.calls) {
    EXPECT_EQ(call.n(), 2);
    EXPECT_EQ(call.sampling().seed(), 9u);  // a prompt's choices draw as they would in a request of its own
  }
  EXPECT_EQ(calls.calls[1].prompt(), "b");
}

TEST(CompletionRequest, EchoAsksForLogprobsOfThePromptOnlyWithLogprobs) {
  const OpenAiCalls text = ReadCompletion(R"("prompt":["a","b"],"echo":true)");
  EXPECT_TRUE(text.echo);
  EXPECT_FALSE(text.calls[0].has_prompt_logprobs());
  EXPECT_FALSE(ReadCompletion(R"("prompt":[1],"echo":false,"logprobs":1)").calls[0].has_prompt_logprobs());
  const OpenAiCalls scored = ReadCompletion(R"("prompt":[[1,2],[3]],"echo":true,"logprobs":4)");
  EXPECT_TRUE(scored.echo);
  for (const v1::GenerateRequest& call : scored.calls) EXPECT_EQ(call.prompt_logprobs(), 4);
}

TEST(CompletionRequest, EchoesOfALongPromptAreBounded) {
  const std::string prompt = absl::StrCat("{\"prompt\":\"", std::string(2 << 20, 'x'), "\",\"n\":64");
  EXPECT_EQ(BlamedField(ReadCompletionRequest(prompt + ",\"echo\":true}", kServed).status()), "n");
  EXPECT_TRUE(ReadCompletionRequest(prompt + "}", kServed).ok());
}

TEST(CompletionRequest, ScoringAloneGeneratesNothing) {
  const OpenAiCalls calls = ReadCompletion(R"("prompt":"a","echo":true,"logprobs":0,"max_tokens":0)");
  EXPECT_TRUE(calls.calls[0].stop().has_max_tokens() && calls.calls[0].has_prompt_logprobs());
  EXPECT_EQ(calls.calls[0].stop().max_tokens(), 0);
}

TEST(CompletionRequest, TheMostAlternativesOfAPromptAreAskedFor) {
  for (const int listed : {0, 3, 9}) {
    const OpenAiCalls calls =
        ReadCompletion(absl::StrCat("\"prompt\":[[1],[2]],\"echo\":true,\"logprobs\":5,\"prompt_logprobs\":", listed));
    EXPECT_EQ(calls.prompt_logprobs, listed);
    EXPECT_EQ(calls.top_logprobs, 5);
    for (const v1::GenerateRequest& call : calls.calls) EXPECT_EQ(call.prompt_logprobs(), std::max(listed, 5));
  }
  const OpenAiCalls alone = ReadCompletion(R"("prompt":"a","prompt_logprobs":0,"max_tokens":0)");
  EXPECT_TRUE(alone.calls[0].has_prompt_logprobs() && alone.calls[0].stop().has_max_tokens() && !alone.logprobs);
}

TEST(CompletionRequest, LogprobsAreANumber) {
  const OpenAiCalls none = ReadCompletion(R"("prompt":"a","logprobs":0)");
  EXPECT_TRUE(none.logprobs && none.top_logprobs == 0 && none.calls[0].sampling().has_logprobs());
  const OpenAiCalls five = ReadCompletion(R"("prompt":"a","logprobs":5)");
  EXPECT_TRUE(five.logprobs && five.top_logprobs == 5);
  EXPECT_EQ(five.calls[0].sampling().logprobs(), 5);
}

TEST(CompletionRequest, OtherMembersAreReadAsAChatsAre) {
  const OpenAiCalls calls = ReadCompletion(
      R"("prompt":"a","max_tokens":3,"temperature":0,"stop":"x","stream":true,"stream_options":{"include_usage":true},
         "model":"Other","novel":1,"messages":[])");
  EXPECT_EQ(calls.calls[0].ShortDebugString(),
            "model: \"Other\" prompt: \"a\" sampling { temperature: 0 } stop { max_tokens: 3 stop: \"x\" }");
  EXPECT_TRUE(calls.stream && calls.include_usage);
  EXPECT_THAT(calls.ignored, ElementsAre("novel", "messages"));
}

std::string ManyPrompts(int count) {
  std::string prompts;
  for (int i = 0; i < count; ++i) absl::StrAppend(&prompts, i == 0 ? "" : ",", "\"a\"");
  return absl::StrCat("\"prompt\":[", prompts, "]");
}

TEST(CompletionRequest, CallsAreBounded) {
  EXPECT_THAT(ReadCompletion(ManyPrompts(128)).calls, SizeIs(128));
  const auto refusal = [](const std::string& members) {
    return std::string(ReadCompletionRequest(absl::StrCat("{", members, "}"), kServed).status().message());
  };
  EXPECT_EQ(refusal(ManyPrompts(129)), "prompt: more than 128 prompts are not allowed in one request");
  EXPECT_EQ(refusal(ManyPrompts(65) + ",\"n\":2"), "n: 130 answers are more than 128; send several requests");
}

struct BadCompletion {
  const char* message;
  const char* members;
};

class CompletionRequestRefuses : public ::testing::TestWithParam<BadCompletion> {};

TEST_P(CompletionRequestRefuses, NamingTheMember) {
  const absl::Status status = ReadCompletionRequest(absl::StrCat("{", GetParam().members, "}"), kServed).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
  const std::string message = GetParam().message;
  EXPECT_EQ(BlamedField(status), message.substr(0, message.find(": ")));
}

INSTANTIATE_TEST_SUITE_P(
    Each, CompletionRequestRefuses,
    ::testing::Values(
        BadCompletion{"prompt: it is missing; a string, an array of strings, an array of ids, or an array of arrays of "
                      "ids is allowed",
                      ""},
        BadCompletion{
            "prompt: it is 5; a string, an array of strings, an array of ids, or an array of arrays of ids is "
            "allowed",
            "\"prompt\":5"},
        BadCompletion{"prompt: it is empty", "\"prompt\":[]"},
        BadCompletion{"prompt[0]: it is an object; a string, an id, or an array of ids is allowed", "\"prompt\":[{}]"},
        BadCompletion{"prompt[0]: it is null; a string, an id, or an array of ids is allowed", "\"prompt\":[null]"},
        BadCompletion{"prompt[1]: it is 5; a string is allowed", "\"prompt\":[\"a\",5]"},
        BadCompletion{"prompt[1]: it is a string; the id of a token is allowed", "\"prompt\":[5,\"a\"]"},
        BadCompletion{"prompt[1]: it is 5; an array of ids is allowed", "\"prompt\":[[1],5]"},
        BadCompletion{"prompt[0]: it is -1; the id of a token is allowed", "\"prompt\":[-1]"},
        BadCompletion{"prompt[1][1]: it is 1.5; the id of a token is allowed", "\"prompt\":[[1],[2,1.5]]"},
        BadCompletion{"prompt[0][0]: it is 2147483648; the id of a token is allowed", "\"prompt\":[[2147483648]]"},
        BadCompletion{"logprobs: it is true; an integer from 0 to 20 is allowed", "\"prompt\":\"a\",\"logprobs\":true"},
        BadCompletion{"logprobs: it is 21; an integer from 0 to 20 is allowed", "\"prompt\":\"a\",\"logprobs\":21"},
        BadCompletion{
            "max_tokens: it is 0; an integer of at least 1 is allowed. With \"prompt_logprobs\", or in a "
            "completion with \"echo\": true and \"logprobs\", it may be 0, for the prompt's log probabilities "
            "alone",
            "\"prompt\":\"a\",\"max_tokens\":0,\"echo\":true"},
        BadCompletion{"prompt_logprobs: it is true; an integer from 0 to 20 is allowed",
                      "\"prompt\":\"a\",\"prompt_logprobs\":true"},
        BadCompletion{
            "prompt_logprobs: it does not go with \"stream\": true; a completion's \"echo\" with \"logprobs\" does",
            "\"prompt\":\"a\",\"prompt_logprobs\":1,\"stream\":true"},
        BadCompletion{"echo: it is 1; true or false is allowed", "\"prompt\":\"a\",\"echo\":1"},
        BadCompletion{"echo: of a prompt of ids it goes with \"logprobs\" only, which bring the ids' text",
                      "\"prompt\":[1],\"echo\":true"},
        BadCompletion{"best_of: it is not supported here; leave it out", "\"prompt\":\"a\",\"best_of\":3"}));

}  // namespace
}  // namespace runahead
