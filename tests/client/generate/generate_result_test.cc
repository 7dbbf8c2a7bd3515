#include "client/generate/generate_result.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GenerateResponse FirstMessage() {
  v1::GenerateResponse response;
  v1::Started& started = *response.mutable_started();
  started.set_request_id("r-1");
  started.set_seed(18446744073709551615u);
  started.mutable_plan()->set_schedule("kvr");
  started.mutable_plan()->add_workers("prefill-0");
  started.mutable_plan()->add_workers("prefill-1");
  started.mutable_plan()->add_parts(700);
  started.mutable_plan()->add_parts(324);
  started.mutable_plan()->set_decode_worker("decode-0");
  return response;
}

v1::GenerateResponse Tokens(int index, std::vector<int32_t> ids, const std::string& text) {
  v1::GenerateResponse response;
  v1::Tokens& tokens = *response.mutable_tokens();
  tokens.set_index(index);
  tokens.set_text(text);
  for (const int32_t id : ids) {
    tokens.add_ids(id);
    v1::TokenLogprob& top = *tokens.add_logprobs()->add_top();
    top.set_id(id);
    top.set_logprob(-0.5f);
    top.set_text(id == 5 ? "H\u00e9" : "\ufffd");
    if (id == 6) top.set_bytes("l\xc3");
  }
  return response;
}

v1::GenerateResponse LastMessage() {
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.set_text("!");
  finished.mutable_usage()->set_prompt_tokens(1024);
  finished.mutable_usage()->set_completion_tokens(3);
  finished.mutable_timing()->set_ttft_s(0.25);
  finished.mutable_timing()->set_tpot_s(0.02);
  (*finished.mutable_timing()->mutable_stages())["prefill"] = 0.2;
  (*finished.mutable_timing()->mutable_stages())["queue"] = 0.05;
  finished.set_failovers(1);
  return response;
}

GenerateResult Whole() {
  GenerateResult answer;
  EXPECT_EQ(Add(FirstMessage(), answer), "");
  EXPECT_EQ(Add(Tokens(0, {5}, "Hé"), answer), "Hé");
  EXPECT_EQ(Add(Tokens(1, {6, 7}, "llo"), answer), "llo");
  EXPECT_EQ(Add(LastMessage(), answer), "!");
  return answer;
}

TEST(GenerateResult, JsonHasTheContractsKeysAndNoOthers) {
  const auto expected = nlohmann::json::parse(R"({
    "request_id": "r-1", "text": "Héllo!", "token_ids": [5, 6, 7],
    "logprobs": [[{"id": 5, "logprob": -0.5, "text": "Hé"}],
                 [{"id": 6, "logprob": -0.5, "text": "\ufffd", "bytes": [108, 195]}],
                 [{"id": 7, "logprob": -0.5, "text": "\ufffd"}]],
    "finish_reason": "length", "seed": 18446744073709551615,
    "usage": {"prompt_tokens": 1024, "completion_tokens": 3, "cached_prompt_tokens": 0},
    "timing": {"ttft_s": 0.25, "tpot_s": 0.02, "stages": {"queue": 0.05, "prefill": 0.2}},
    "plan": {"schedule": "kvr", "workers": ["prefill-0", "prefill-1"], "parts": [700, 324]},
    "failovers": 1})");
  const std::string text = ResultJson(Whole());
  EXPECT_EQ(nlohmann::json::parse(text), expected);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

TEST(GenerateResult, JsonKeepsKeysWhereThereIsNothing) {
  GenerateResult answer;
  Add(v1::GenerateResponse(), answer);
  const auto json = nlohmann::json::parse(ResultJson(answer));
  EXPECT_EQ(json["token_ids"], nlohmann::json::array());
  EXPECT_EQ(json["logprobs"], nlohmann::json::array());
  EXPECT_EQ(json["timing"]["stages"], nlohmann::json::object());
  EXPECT_EQ(json["plan"]["parts"], nlohmann::json::array());
}

TEST(GenerateResult, OfAKnownBeginningSaysHowMuchWasThere) {
  GenerateResult answer = Whole();
  v1::Plan& plan = *answer.started.mutable_plan();
  plan.Clear();
  plan.set_schedule("continuation");
  plan.set_decode_worker("decode-0");
  plan.set_known_tokens(1000);
  plan.set_known_output_tokens(40);
  answer.finished.mutable_usage()->set_cached_prompt_tokens(1000);
  const auto json = nlohmann::json::parse(ResultJson(answer));
  EXPECT_EQ(json["usage"]["cached_prompt_tokens"], 1000);
  EXPECT_EQ(json["plan"]["schedule"], "continuation");
  EXPECT_EQ(json["plan"]["known_tokens"], 1000);
  EXPECT_EQ(json["plan"]["known_output_tokens"], 40);
  EXPECT_THAT(SummaryLine(answer), HasSubstr("tokens/s; continuation behind 1000 tokens, decoded by decode-0"));
}

v1::GenerateResponse Scores(int index, std::vector<int32_t> ids) {
  v1::GenerateResponse response;
  response.mutable_prompt_logprobs()->set_index(index);
  for (const int32_t id : ids) {
    v1::TokenLogprob& top = *response.mutable_prompt_logprobs()->add_logprobs()->add_top();
    top.set_id(id);
    top.set_logprob(-0.5f);
    top.set_text("H");
  }
  return response;
}

TEST(GenerateResult, ScoresOfThePromptStandBeforeTheAnswers) {
  GenerateResult answer;
  for (const auto& response : {FirstMessage(), Scores(0, {2}), Scores(1, {3, 4}), Scores(3, {9}), Tokens(0, {5}, "H"), LastMessage()}) {
    Add(response, answer);
  }
  const auto json = nlohmann::json::parse(ResultJson(answer));
  const auto score = [](int id) {
    return nlohmann::json::parse(absl::StrCat(R"([{"id":)", id, R"(,"logprob":-0.5,"text":"H"}])"));
  };
  EXPECT_EQ(json["prompt_logprobs"], (nlohmann::json::array_t{nullptr, score(3), score(4), score(9)}));
  EXPECT_EQ(json["logprobs"].size(), 1u);
  EXPECT_EQ(LogprobsText(answer),
            "prompt token 2:  3 \"H\" -0.5000\nprompt token 3:  4 \"H\" -0.5000\nprompt token 4:  9 \"H\" -0.5000\n"
            "token 1:  5 \"Hé\" -0.5000\n");
}

TEST(GenerateResult, WithoutAnAnswerTheSummaryNamesNoFirstToken) {
  GenerateResult answer;
  Add(FirstMessage(), answer);
  v1::GenerateResponse last = LastMessage();
  last.mutable_finished()->mutable_usage()->set_completion_tokens(0);
  last.mutable_finished()->mutable_timing()->set_tpot_s(0);
  Add(last, answer);
  EXPECT_THAT(SummaryLine(answer), HasSubstr("1024 prompt tokens, computed in 0.250 s; kvr: "));
}

TEST(GenerateResult, SummaryNamesTimeSpeedAndPlan) {
  EXPECT_EQ(
      SummaryLine(Whole()),
      "1024 prompt tokens, first token after 0.250 s, then 50.0 tokens/s; kvr: prefill-0 (700) -> prefill-1 (324), "
      "decoded by decode-0");
}

}  // namespace
}  // namespace runahead
