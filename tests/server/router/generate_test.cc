// Requests that go well, and what the workers see of them.
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/router/validation.h"
#include "server/rpc/status.h"
#include "tests/testing/router_fixture.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using GenerateTest = testing::RouterFixture;

TEST_F(GenerateTest, AnswersThroughAChainOfTwo) {
  Start();
  v1::GenerateRequest request = Ids(600, 4);
  request.set_request_id("mine");
  request.mutable_sampling()->set_seed(7);
  const Got got = Generate(request);
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.started().request_id(), "mine");
  EXPECT_EQ(got.started().seed(), 7u);
  EXPECT_EQ(got.started().prompt_tokens(), 600);
  EXPECT_EQ(got.started().plan().schedule(), "kvr");
  EXPECT_THAT(got.started().plan().workers(), ElementsAre("prefill-0", "prefill-1"));
  EXPECT_THAT(got.started().plan().parts(), ElementsAre(300, 300));
  EXPECT_EQ(got.started().plan().decode_worker(), "decode-0");
  EXPECT_THAT(got.ids(), ElementsAre(100, 101, 102, 103));
  EXPECT_EQ(got.text(), tokenizer_->Decode({100, 101, 102, 103}, true));
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.finished().usage().prompt_tokens(), 600);
  EXPECT_EQ(got.finished().usage().completion_tokens(), 4);
  double sum = 0;
  for (const auto& [stage, seconds] : got.finished().timing().stages()) sum += seconds;
  EXPECT_EQ(got.finished().timing().stages_size(), 7);
  EXPECT_NEAR(sum, got.finished().timing().ttft_s(), 1e-6);
  decode_[0]->AwaitLeases(0);
}

TEST_F(GenerateTest, TellsEveryMemberItsPart) {
  Start();
  v1::GenerateRequest request = Ids(10, 4);
  request.mutable_experiment()->add_parts(7);
  request.mutable_experiment()->add_parts(3);
  request.mutable_sampling()->set_temperature(0.5f);
  ASSERT_TRUE(Generate(request).status.ok());
  const v1::StartJob head = prefill_[0]->AwaitStarts(1).at(0);
  const v1::StartJob tail = prefill_[1]->AwaitStarts(1).at(0);
  EXPECT_EQ(head.job(), tail.job());
  EXPECT_THAT(head.bounds(), ElementsAre(0, 7, 10));
  EXPECT_THAT(tail.bounds(), ElementsAre(0, 7, 10));
  EXPECT_EQ(head.part(), 0);
  EXPECT_EQ(tail.part(), 1);
  EXPECT_THAT(head.ids(), ElementsAre(3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(tail.ids_size(), 10);
  EXPECT_EQ(head.decode().name(), "decode-0");
  EXPECT_EQ(head.decode().link_address(), "link of decode-0");
  EXPECT_EQ(head.lease().number(), tail.lease().number());
  EXPECT_NE(head.lease().number(), 0u);
  EXPECT_FALSE(head.has_sampling());
  EXPECT_EQ(tail.sampling().temperature(), 0.5f);
  EXPECT_TRUE(tail.sampling().has_seed());
  EXPECT_EQ(head.deadline_ms(), 0);
  const v1::DecodeRequest decode = decode_[0]->decode_requests().at(0);
  EXPECT_EQ(decode.prompt_ids_size(), 10);
  EXPECT_EQ(decode.first_token(), 100);
  EXPECT_EQ(decode.max_tokens(), 4);
  EXPECT_EQ(decode.sampling().seed(), tail.sampling().seed());
  EXPECT_THAT(decode.stop_ids(), ::testing::Contains(kSyntheticImEnd));
}

TEST_F(GenerateTest, TellsWorkersTheSchedule) {
  Start();
  size_t starts = 0;
  for (const auto& [schedule, name] : std::vector<std::pair<v1::Schedule, std::string>>{
           {v1::SCHEDULE_KVR_EVEN, "kvr-even"}, {v1::SCHEDULE_TSP, "tsp"}, {v1::SCHEDULE_TSP_CAUSAL, "tsp-causal"}}) {
    v1::GenerateRequest request = Ids(11, 2);
    request.mutable_experiment()->set_schedule(schedule);
    request.mutable_experiment()->set_width(2);
    const Got got = Generate(request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_THAT(got.started().plan().parts(), ElementsAre(6, 5));
    const v1::StartJob head = prefill_[0]->AwaitStarts(++starts).back();
    EXPECT_EQ(head.schedule(), schedule);
    EXPECT_EQ(prefill_[1]->AwaitStarts(starts).back().schedule(), schedule);
    EXPECT_EQ(got.started().plan().schedule(), name);
  }
}

TEST_F(GenerateTest, FormsTheLine) {
  Start({.prefill = 3});
  EXPECT_EQ(prefill_[0]->AwaitLine([](const v1::FormLine& l) { return l.has_successor(); }).successor().name(),
            "prefill-1");
  const v1::FormLine middle =
      prefill_[1]->AwaitLine([](const v1::FormLine& line) { return line.has_predecessor() && line.has_successor(); });
  EXPECT_EQ(middle.predecessor().link_address(), "link of prefill-0");
  EXPECT_EQ(middle.predecessor().device_link(), "device link of prefill-0");
  EXPECT_EQ(middle.successor().name(), "prefill-2");
  EXPECT_FALSE(prefill_[2]->AwaitLine([](const v1::FormLine& l) { return l.has_predecessor(); }).has_successor());
}

TEST_F(GenerateTest, OneTokenTakesNoLease) {
  Start();
  const Got got = Generate(Ids(5, 1));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_THAT(got.ids(), ElementsAre(100));
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(got.finished().timing().tpot_s(), 0);
  EXPECT_EQ(got.started().plan().decode_worker(), "");
  EXPECT_FALSE(prefill_[0]->AwaitStarts(1).at(0).has_lease());
  EXPECT_TRUE(decode_[0]->decode_requests().empty());
}

TEST_F(GenerateTest, TheFirstTokenMayBeTheLast) {
  Start();
  for (auto& worker : prefill_) {
    worker->Change([](FakeBehaviour& b) {
      b.token = [](int64_t) { return kSyntheticImEnd; };
      b.done = false;  // the hand-off is still under way
    });
  }
  const Got got = Generate(Ids(5, 10));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_THAT(got.ids(), ElementsAre(kSyntheticImEnd));
  EXPECT_EQ(got.text(), "");
  EXPECT_EQ(got.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(got.finished().usage().completion_tokens(), 1);
  prefill_[0]->AwaitCancel(prefill_[0]->AwaitStarts(1).at(0).job());
  decode_[0]->AwaitLeases(0);
  EXPECT_TRUE(decode_[0]->decode_requests().empty());
}

TEST_F(GenerateTest, TheFirstTokenDoesNotWaitForTheHandOff) {
  Start();
  for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.done = false; });
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 0; });
  Call call(*stub_, Ids(5, 3));
  EXPECT_TRUE(call.Read()->has_started());
  EXPECT_THAT(call.Read()->tokens().ids(), ElementsAre(100));
  decode_[0]->AwaitDecodes(1);  // opened, and waiting for the KV
  prefill_[0]->SendDone(prefill_[0]->AwaitStarts(1).at(0).job());
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  EXPECT_THAT(call.Finish().ids(), ElementsAre(100, 101, 102));
}

TEST_F(GenerateTest, EndsAtAStopIdAndAtAStopString) {
  Start();
  const std::vector<int32_t> ids = *tokenizer_->Encode("one two three", {.parse_special = false, .add_bos = false});
  const auto token = [ids](int64_t i) { return i < static_cast<int64_t>(ids.size()) ? ids[i] : kSyntheticImEnd; };
  const auto speak = [token](FakeBehaviour& b) {
    b.token = token;
    b.logprobs = 1;
  };
  for (auto& worker : prefill_) worker->Change(speak);
  decode_[0]->Change(speak);
  v1::GenerateRequest request = Ids(5, 100);
  const Got eos = Generate(request);
  EXPECT_EQ(eos.text(), "one two three");
  EXPECT_EQ(eos.ids().size(), ids.size() + 1);
  EXPECT_EQ(eos.finished().reason(), v1::FINISH_REASON_STOP);
  for (const v1::GenerateResponse& response : eos.responses) {
    EXPECT_EQ(response.tokens().logprobs_size(), response.tokens().ids_size());
  }
  request.mutable_stop()->add_stop("wo th");
  const Got stopped = Generate(request);
  EXPECT_EQ(stopped.text(), "one t");
  EXPECT_EQ(stopped.finished().reason(), v1::FINISH_REASON_STOP);
  request.mutable_stop()->clear_stop();
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_stop()->set_max_tokens(static_cast<int>(ids.size()) + 3);
  const Got ignored = Generate(request);
  EXPECT_EQ(ignored.ids().size(), ids.size() + 3);
  EXPECT_EQ(ignored.finished().reason(), v1::FINISH_REASON_LENGTH);
  // Asked for by name or id, the end token ends it all the same.
  request.mutable_stop()->add_stop("<|im_end|>");
  const Got named = Generate(request);
  EXPECT_EQ(named.text(), "one two three");
  EXPECT_EQ(named.ids().size(), ids.size() + 1);
  EXPECT_EQ(named.finished().reason(), v1::FINISH_REASON_STOP);
  request.mutable_stop()->clear_stop();
  request.mutable_stop()->add_stop_ids(kSyntheticImEnd);
  EXPECT_EQ(Generate(request).finished().reason(), v1::FINISH_REASON_STOP);
  decode_[0]->AwaitLeases(0);
}

TEST_F(GenerateTest, TakesTextAndChats) {
  Start();
  const Got text = Generate(Prompt("Hello <|im_end|>", 2));
  ASSERT_TRUE(text.status.ok()) << text.status;
  EXPECT_EQ(text.started().prompt_tokens(), static_cast<int>(tokenizer_->Encode("Hello <|im_end|>")->size()));
  EXPECT_NE(text.started().seed(), 0u);
  EXPECT_EQ(text.started().request_id().size(), 16u);
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("Hi");
  const Got chat = Generate(request);
  ASSERT_TRUE(chat.status.ok()) << chat.status;
  EXPECT_EQ(chat.started().prompt_tokens(),
            static_cast<int>(chat_template_->Encode(*tokenizer_, {.messages = {{"user", "Hi"}}})->size()));
}

TEST_F(GenerateTest, TheTemplateSeesAllOfAChat) {
  chat_template_ = ChatTemplate::Parse(
      "{{ tools[0].name }}{{ x }}{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.name }}{{ m.tool_call_id }}"
      "{{ m.tool_calls }}{{ m.reasoning_content }}{% endfor %}",
      "", "");
  Start();
  v1::GenerateRequest request;
  v1::ChatMessages& given = *request.mutable_chat();
  given.set_tools(R"([{"name": "clock"}])");
  given.set_template_variables(R"({"x": 1})");
  v1::ChatMessage& message = *given.add_messages();
  message.set_role("tool");
  message.set_content("c");
  message.set_name("n");
  message.set_tool_call_id("i");
  message.set_tool_calls("[2]");
  message.set_reasoning_content("r");
  const Got chat = Generate(request);
  ASSERT_TRUE(chat.status.ok()) << chat.status;
  EXPECT_EQ(chat.started().prompt_tokens(),
            static_cast<int>(tokenizer_->Encode("clock1toolcni[2]r", {.add_bos = false})->size()));
}

TEST_F(GenerateTest, AChatThatItsTemplateRefusesBlamesTheMessages) {
  chat_template_ = ChatTemplate::Parse("{{ raise_exception('roles alternate') }}", "", "");
  Start();
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "chat.messages");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the chat template says: roles alternate; send the prompt as"));
}

TEST_F(GenerateTest, ManyAtOnceStandInTheSameOrderOnAllWorkers) {
  Start({.prefill = 3, .decode = 2});
  constexpr int kRequests = 32;
  std::vector<std::future<Got>> calls;
  for (int i = 0; i < kRequests; ++i) {
    calls.push_back(std::async(std::launch::async, [this, i] { return Generate(Ids(20 + 300 * (i % 4), 2 + i % 7)); }));
  }
  for (int i = 0; i < kRequests; ++i) {
    const Got got = calls[i].get();
    ASSERT_TRUE(got.status.ok()) << got.status;
    ASSERT_EQ(got.ids().size(), static_cast<size_t>(2 + i % 7));
  }
  std::vector<uint64_t> order;
  for (auto& worker : prefill_) {
    std::vector<uint64_t> jobs;
    for (const v1::StartJob& start : worker->AwaitStarts(0)) jobs.push_back(start.job());
    EXPECT_TRUE(std::is_sorted(jobs.begin(), jobs.end()));
    order.insert(order.end(), jobs.begin(), jobs.end());
  }
  EXPECT_GT(order.size(), static_cast<size_t>(kRequests));  // some chains had several members
  for (auto& worker : decode_) worker->AwaitLeases(0);
  EXPECT_TRUE(MetricBecomes("runahead_requests_in_flight", 0));
  EXPECT_EQ(Metric("runahead_requests_total{code=\"OK\",model=\"tiny\"}"), kRequests);
}

TEST_F(GenerateTest, TokenizesAndListsTheModel) {
  Start();
  grpc::ClientContext one, two, three;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("<|im_end|>");
  tokenize.set_special(true);
  v1::TokenizeResponse ids;
  ASSERT_TRUE(stub_->Tokenize(&one, tokenize, &ids).ok());
  EXPECT_THAT(ids.ids(), ElementsAre(kSyntheticImEnd));
  tokenize.set_model("other");
  EXPECT_EQ(stub_->Tokenize(&two, tokenize, &ids).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&three, v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "tiny");
  EXPECT_EQ(models.models(0).context_length(), testing::kFixtureContext);
  EXPECT_EQ(models.models(0).vocabulary_size(), 320);
  EXPECT_EQ(models.models(0).dtype(), "f32");
  EXPECT_EQ(models.models(0).kv_dtype(), "f16");
  EXPECT_EQ(models.models(0).fingerprint(), model_.fingerprint);
  EXPECT_EQ(models.models(0).prefill_workers(), 2);
  EXPECT_EQ(models.models(0).decode_workers(), 1);
  EXPECT_EQ(models.models(0).layers(), 2);
  EXPECT_EQ(models.models(0).kv_bytes_per_token(), 2 * 256);
  EXPECT_EQ(models.models(0).window_layers(), 1);
  EXPECT_EQ(models.models(0).window(), 40);
}

TEST_F(GenerateTest, RefusesWithFieldAndLimitAndThenAnswers) {
  Start();
  v1::GenerateRequest request = Ids(10, 3);
  request.mutable_experiment()->add_parts(4);
  request.mutable_experiment()->add_parts(5);
  const Got parts = Generate(request);
  EXPECT_EQ(parts.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parts.status.message(), "experiment.parts: 4,5 add up to 9; the prompt has 10 tokens");
  EXPECT_EQ(Generate(Ids(testing::kFixtureContext, 1)).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Generate(Ids(4000, 100)).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Generate(Prompt("", 1)).status.code(), absl::StatusCode::kInvalidArgument);
  // Megabytes are refused before they are tokenized, like other texts that are too long.
  v1::GenerateRequest chat = Prompt("", 1);
  chat.mutable_chat()->add_messages()->set_role("user");
  for (int i = 0; i < 2; ++i) {
    v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(std::string(1 << 20, 'a'));
  }
  v1::GenerateRequest messages;
  for (int i = 0; i < 1 << 20; ++i) messages.mutable_chat()->add_messages()->set_role("user");
  for (const v1::GenerateRequest& megabytes : {Prompt(std::string(2 << 20, 'a'), 1), chat, messages}) {
    const absl::Status status = Generate(megabytes).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()), StartsWith("prompt: at least "));
    EXPECT_EQ(BlamedField(status), "prompt");
  }
  EXPECT_TRUE(Generate(Ids(10, 3)).status.ok());
}

TEST_F(GenerateTest, APromptIsBoundedWhereTheContextBoundsNothing) {
  model_.context_length = 1 << 30;
  v1::GenerateRequest request = Prompt(std::string(kMaxPromptBytes, 'a'), 1);
  EXPECT_EQ(CheckInputSize(request, *tokenizer_, model_), absl::OkStatus());
  request.mutable_prompt()->push_back('a');
  const absl::Status status = CheckInputSize(request, *tokenizer_, model_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "prompt");
}

TEST_F(GenerateTest, TokenizeTakesTextsUpToItsLimit) {
  Start();
  v1::TokenizeRequest request;
  const auto tokenize = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return FromGrpcStatus(stub_->Tokenize(&context, request, &response));
  };
  // Words that the vocabulary has, so that the answer is one that clients take.
  while (request.text().size() < kMaxTokenizeBytes) request.mutable_text()->append(" the");
  EXPECT_EQ(tokenize(), absl::OkStatus());
  request.set_text(std::string(kMaxTokenizeBytes + 1, 'a'));
  const absl::Status status = tokenize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "text");
  EXPECT_THAT(std::string(status.message()), StartsWith("text: 4194305 bytes are more than 4194304"));
  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->mutable_messages(0)->set_content(std::string(kMaxTokenizeBytes + 1, 'a'));
  EXPECT_THAT(std::string(tokenize().message()), StartsWith("chat: 4194305 bytes of text are more than 4194304"));
  request.mutable_chat()->clear_messages();
  for (int i = 0; i < testing::kFixtureContext; ++i) request.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(tokenize().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(GenerateTest, TokenizeNamesWhatIsWrongWithAChat) {
  Start();
  v1::TokenizeRequest request;
  const auto refusal = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string blamed = BlamedField(status).value_or("none");
    EXPECT_THAT(std::string(status.message()), StartsWith(blamed + ": "));
    return blamed;
  };
  request.mutable_chat();
  EXPECT_EQ(refusal(), "chat.messages");
  request.mutable_chat()->add_messages()->set_role("user");
  request.set_special(true);
  EXPECT_EQ(refusal(), "special");
  request.set_special(false);
  request.set_without_begin(true);
  EXPECT_EQ(refusal(), "without_begin");
  request.set_without_begin(false);
  request.mutable_chat()->set_template_variables(R"({"messages": []})");
  EXPECT_EQ(refusal(), "chat.template_variables.messages");
  request.mutable_chat()->clear_template_variables();
  request.mutable_chat()->set_continue_final_message(true);
  EXPECT_EQ(refusal(), "chat.messages[0].content");
  request.mutable_chat()->set_add_generation_prompt(true);
  EXPECT_EQ(refusal(), "chat.continue_final_message");
}

TEST_F(GenerateTest, DetokenizeNamesIdsThatAreNoneAndTextsThatAreTooLong) {
  Start();
  const auto detokenize = [&](const std::vector<int32_t>& ids) {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    request.mutable_ids()->Assign(ids.begin(), ids.end());
    v1::DetokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Detokenize(&context, request, &response));
    return status.ok() ? response.text() : std::string(status.message());
  };
  EXPECT_EQ(detokenize({}), "");
  EXPECT_EQ(detokenize({1, 320}), "ids[1]: 320 is not in [0, 320)");
  EXPECT_EQ(detokenize({-1}), "ids[0]: -1 is not in [0, 320)");
  const int32_t letter = tokenizer_->Encode("a")->back();
  const int32_t part = tokenizer_->Encode("\xf0\x9f\x98\x80")->front();  // becomes U+FFFD, which is longer
  EXPECT_EQ(detokenize(std::vector<int32_t>(kMaxDetokenizedBytes, letter)).size(), kMaxDetokenizedBytes);
  EXPECT_THAT(detokenize(std::vector<int32_t>(kMaxDetokenizedBytes + 1, letter)),
              HasSubstr("ids: their text has more"));
  EXPECT_THAT(detokenize(std::vector<int32_t>(kMaxDetokenizedBytes / 2, part)), HasSubstr("ids: their text has more"));
}

// The words come back to nobody, and not to the log.
TEST_F(GenerateTest, WhatATemplateFailsOnIsNotShown) {
  chat_template_ = ChatTemplate::Parse("{{ messages[0][messages[0].content].x }}", "", "");
  Start();
  ::testing::internal::CaptureStderr();
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->mutable_messages(0)->set_content("canary");
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("canary")));
  server_.reset();
  service_.reset();  // when the session has ended, and with it what it logs
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("canary")));
}

TEST_F(GenerateTest, ArgumentsThatHoldNoObjectAreNamed) {
  Start();
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("assistant");
  request.mutable_chat()->mutable_messages(0)->set_tool_calls(R"([{"function": {"name": "f", "arguments": "[1]"}}])");
  const absl::Status status = Generate(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(status), "chat.messages[0].tool_calls[0].function.arguments");
}

}  // namespace
}  // namespace runahead
