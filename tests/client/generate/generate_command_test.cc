// `runahead generate`, `tokenize` and `models` as programs, against a router whose answers the test writes.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/generate/fake_inference.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using testing::FakeInference;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Started;
using ::testing::StartsWith;
using testing::TestProcess;
using testing::Text;
using Writer = FakeInference::Writer;

std::vector<std::string> Generate(const FakeInference& router, std::vector<std::string> more) {
  std::vector<std::string> args = {RUNAHEAD_BINARY, "generate", "--router", router.address(), "--prompt", "Hello"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(GenerateCommand, PrintsTextAsItComes) {
  testing::Gate seen;
  FakeInference router([&](const v1::GenerateRequest& request, Writer& writer) {
    EXPECT_EQ(request.prompt(), "Hello");
    writer.Write(Started());
    writer.Write(Text("One"));
    seen.Wait();
    writer.Write(Text(" two"));
    writer.Write(Finished());
    return absl::OkStatus();
  });
  TestProcess process(Generate(router, {}));
  ASSERT_TRUE(process.ReadOutUntil("One")) << process.err();
  EXPECT_EQ(process.out(), "One");
  seen.Open();
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_EQ(process.out(), "One two\n");
  EXPECT_THAT(process.err(), HasSubstr("single")) << "the plan is shown";
}

v1::GenerateResponse OfAnswer(int32_t answer, v1::GenerateResponse response) {
  if (response.has_started()) response.mutable_started()->set_answer(answer);
  if (response.has_started()) response.mutable_started()->set_seed(7 + answer);
  if (response.has_tokens()) response.mutable_tokens()->set_answer(answer);
  if (response.has_finished()) response.mutable_finished()->set_answer(answer);
  return response;
}

// Two answers whose tokens come mixed, the second one first whole.
absl::Status WriteTwo(const v1::GenerateRequest& request, Writer& writer) {
  EXPECT_EQ(request.n(), 2);
  writer.Write(OfAnswer(0, Started()));
  writer.Write(OfAnswer(0, Text("One")));
  writer.Write(OfAnswer(1, Started()));
  writer.Write(OfAnswer(1, Text("Uno")));
  writer.Write(OfAnswer(0, Text(" two")));
  writer.Write(OfAnswer(1, Text(" due")));
  writer.Write(OfAnswer(1, Finished()));
  writer.Write(OfAnswer(0, Finished()));
  return absl::OkStatus();
}

TEST(GenerateCommand, PrintsSeveralAnswersWholeEachUnderAHeader) {
  FakeInference router(WriteTwo);
  TestProcess process(Generate(router, {"--n", "2"}));
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_EQ(process.out(), "--- answer 1, seed 8\nUno due\n--- answer 0, seed 7\nOne two\n");
  EXPECT_THAT(process.err(), HasSubstr("answer 1: "));
  EXPECT_THAT(process.err(), HasSubstr("answer 0: "));
}

TEST(GenerateCommand, PrintsAnObjectForEachOfSeveralAnswersWithJson) {
  FakeInference router(WriteTwo);
  TestProcess process(Generate(router, {"--n", "2", "--json"}));
  EXPECT_EQ(process.Wait(), 0);
  std::istringstream lines(process.out());
  std::string line;
  for (const auto& [answer, text] : {std::pair(1, "Uno due"), std::pair(0, "One two")}) {
    ASSERT_TRUE(std::getline(lines, line));
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["answer"], answer);
    EXPECT_EQ(json["text"], text);
    EXPECT_EQ(json["seed"], 7 + answer);
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(GenerateCommand, OfSeveralAnswersThatBreakOffWhatCameIsShown) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(OfAnswer(0, Started()));
    writer.Write(OfAnswer(0, Text("One")));
    writer.Write(OfAnswer(1, Started()));
    return absl::InternalError("it broke");
  });
  TestProcess process(Generate(router, {"--n", "2"}));
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.out(), "--- answer 0, seed 7, not whole\nOne\n");
  EXPECT_THAT(process.err(), HasSubstr("it broke"));
}

TEST(GenerateCommand, PrintsOneObjectWithJson) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(Started());
    writer.Write(Text("One"));
    writer.Write(Text(" two"));
    writer.Write(Finished());
    return absl::OkStatus();
  });
  TestProcess process(Generate(router, {"--json"}));
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_EQ(process.err(), "");
  const auto json = nlohmann::json::parse(process.out());
  EXPECT_EQ(json["text"], "One two");
  EXPECT_EQ(json["request_id"], "r-1");
  EXPECT_EQ(json["finish_reason"], "stop");
}

TEST(GenerateCommand, PrintsLogprobsAfterTheText) {
  FakeInference router([](const v1::GenerateRequest& request, Writer& writer) {
    EXPECT_EQ(request.sampling().logprobs(), 2);
    writer.Write(Started());
    v1::GenerateResponse response = Text("One");
    v1::TokenLogprobs& logprobs = *response.mutable_tokens()->add_logprobs();
    for (const auto& [id, text, logprob] : {std::tuple(1, "One", -0.5f), std::tuple(77, " \n", -1.25f)}) {
      v1::TokenLogprob& top = *logprobs.add_top();
      top.set_id(id);
      top.set_text(text);
      top.set_logprob(logprob);
    }
    writer.Write(response);
    writer.Write(Finished());
    return absl::OkStatus();
  });
  TestProcess process(Generate(router, {"--logprobs", "2"}));
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_EQ(process.out(), "One\ntoken 1:  1 \"One\" -0.5000  77 \" \\n\" -1.2500\n");
}

TEST(GenerateCommand, SaysWhoseTheRequestIs) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(Finished());
    return absl::OkStatus();
  });
  EXPECT_EQ(TestProcess(Generate(router, {"--tenant", "batch"})).Wait(), 0);
  EXPECT_EQ(router.metadata("runahead-tenant"), "batch");
  EXPECT_EQ(TestProcess(Generate(router, {})).Wait(), 0);
  EXPECT_EQ(router.metadata("runahead-tenant"), "");
}

TEST(GenerateCommand, BringsTheApiKeyOfFlagOrEnvironmentAndNeverShowsIt) {
  FakeInference router([&](const v1::GenerateRequest&, Writer&) { return absl::UnauthenticatedError("no"); });
  const auto run = [&](const std::vector<std::string>& flags, const std::string& environment, int code) {
    TestProcess process(Generate(router, flags), {environment});
    EXPECT_EQ(process.Wait(), code) << process.err();
    EXPECT_THAT(process.err(), Not(HasSubstr("secret")));
    return router.metadata("authorization");
  };
  EXPECT_EQ(run({}, "OTHER=1", 1), "");
  EXPECT_EQ(run({}, "RUNAHEAD_API_KEY=env-secret", 1), "Bearer env-secret");
  EXPECT_EQ(run({"--api-key", "flag-secret"}, "RUNAHEAD_API_KEY=env-secret", 1), "Bearer flag-secret");
  run({"--api-key", "two secret words"}, "OTHER=1", 2);
  run({"--api-key", "line\nof-secret"}, "OTHER=1", 2);
}

TEST(GenerateCommand, SaysWhatTheServiceRefuses) {
  absl::Status answer;
  FakeInference router([&](const v1::GenerateRequest&, Writer&) { return answer; });
  const auto run = [&](const absl::Status& status) {
    answer = status;
    TestProcess process(Generate(router, {"--json"}));
    EXPECT_EQ(process.Wait(), 1);
    EXPECT_EQ(process.out(), "");
    return process.err();
  };
  EXPECT_EQ(run(InvalidField("sampling.top_p", "is 2; allowed: above 0, at most 1")),
            "runahead generate: INVALID_ARGUMENT: sampling.top_p: is 2; allowed: above 0, at most 1\n");
  EXPECT_EQ(run(WithRetryAfter(absl::ResourceExhaustedError("the queue is full"), absl::Seconds(2))),
            "runahead generate: RESOURCE_EXHAUSTED: the queue is full; try again in 2s\n");
  absl::Status elsewhere = absl::InvalidArgumentError("no good");
  InvalidField("stop.max_tokens", "").ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    elsewhere.SetPayload(url, payload);
  });
  EXPECT_EQ(run(elsewhere), "runahead generate: INVALID_ARGUMENT: no good (field stop.max_tokens)\n");
}

TEST(GenerateCommand, KeepsTheTextWhenTheServiceFailsLater) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(Started());
    writer.Write(Text("One"));
    return absl::UnavailableError("decode-0 was lost");
  });
  TestProcess process(Generate(router, {}));
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.out(), "One\n");
  EXPECT_EQ(process.err(), "runahead generate: UNAVAILABLE: decode-0 was lost\n");
}

TEST(GenerateCommand, CancelsTheCallOnCtrlC) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    writer.Write(Text("One"));
    testing::WriteForEver(writer);
    return absl::CancelledError("");
  });
  TestProcess process(Generate(router, {}));
  ASSERT_TRUE(process.ReadOutUntil("One")) << process.err();
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 128 + SIGINT);
}

TEST(GenerateCommand, GivesUpAfterTheTimeout) {
  FakeInference router([](const v1::GenerateRequest&, Writer& writer) {
    testing::WriteForEver(writer);
    return absl::OkStatus();
  });
  // Long enough that something came, however late the program is.
  for (int seconds = 1;; seconds *= 2) {
    TestProcess process(Generate(router, {"--timeout", std::to_string(seconds)}));
    EXPECT_EQ(process.Wait(), 1);
    if (process.err().find("nothing answered") != std::string::npos && seconds < 32) continue;
    const std::string within = "DEADLINE_EXCEEDED: not done within the " + std::to_string(seconds) + "s of --timeout";
    EXPECT_THAT(process.err(), HasSubstr(within));
    break;
  }
}

TEST(GenerateCommand, SaysThatNobodyAnswers) {
  std::string address;
  {
    FakeInference router([](const v1::GenerateRequest&, Writer&) { return absl::OkStatus(); });
    address = router.address();
  }
  TestProcess hasty({RUNAHEAD_BINARY, "generate", "--router", address, "--prompt", "a", "--timeout", "0.1"});
  EXPECT_EQ(hasty.Wait(), 1);
  EXPECT_THAT(hasty.err(),
              HasSubstr("DEADLINE_EXCEEDED: nothing answered at " + address + " within the 100ms of --timeout"));
  TestProcess patient({RUNAHEAD_BINARY, "generate", "--router", address, "--prompt", "a"});
  EXPECT_EQ(patient.Wait(), 1);
  EXPECT_THAT(patient.err(), HasSubstr("UNAVAILABLE: no answer from " + address));
}

TEST(GenerateCommand, ReadsThePromptFromStdin) {
  FakeInference router([](const v1::GenerateRequest& request, Writer& writer) {
    EXPECT_EQ(request.prompt(), "From a pipe\n");
    writer.Write(Finished());
    return absl::OkStatus();
  });
  TestProcess process({RUNAHEAD_BINARY, "generate", "--router", router.address(), "--prompt-file", "-"});
  process.Write("From a pipe\n");
  EXPECT_EQ(process.Wait(), 0);
}

TEST(TokenizeCommand, AsksTheRouter) {
  FakeInference router([](const v1::GenerateRequest&, Writer&) { return absl::OkStatus(); });
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "tokenize", "--router", router.address()};
    args.insert(args.end(), more.begin(), more.end());
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 0) << process.err();
    return process.out();
  };
  EXPECT_EQ(run({"--json", "AB"}), "{\"ids\":[65,66]}\n");
  EXPECT_EQ(run({"--json", "--special", "AB"}), "{\"ids\":[65,66,-1]}\n");
  EXPECT_EQ(run({"AB"}), "65,66\n");
  EXPECT_EQ(run({"--json", "--", "-A"}), "{\"ids\":[45,65]}\n");
  EXPECT_EQ(run({"--json", "[A]"}), "{\"ids\":[91,65,93]}\n");
  EXPECT_EQ(run({"--json", ""}), "{\"ids\":[]}\n");
  EXPECT_EQ(run({"--without-begin", "A"}), "65,1000\n");
  EXPECT_EQ(run({"--message", "u:A", "--message", "a:B"}), "117,65,97,66\n");
}

TEST(TokenizeCommand, TakesATextOrAChat) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"A", "--message", "user:B"}, {"--special", "--message", "user:B"}, {"A", "--template-variable", "x=1"}}) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "tokenize", "--router", "127.0.0.1:1"};
    args.insert(args.end(), wrong.begin(), wrong.end());
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 2) << ::testing::PrintToString(wrong);
    EXPECT_THAT(process.err(), HasSubstr("--message")) << ::testing::PrintToString(wrong);
  }
}

TEST(DetokenizeCommand, AsksTheRouter) {
  FakeInference router([](const v1::GenerateRequest&, Writer&) { return absl::OkStatus(); });
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "detokenize", "--router", router.address()};
    args.insert(args.end(), more.begin(), more.end());
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 0) << process.err();
    return process.out();
  };
  EXPECT_EQ(run({"--json", "65,10,66"}), "{\"text\":\"A\\nB\"}\n");
  EXPECT_EQ(run({"--special", "65"}), "A<>\n");
}

TEST(TokenizeCommand, NamesTheModelFileThatIsNone) {
  TestProcess process({RUNAHEAD_BINARY, "tokenize", "--model", "/dev/null", "--json", "A"});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.err(), HasSubstr("/dev/null"));
}

TEST(TokenizeCommand, RefusesTextThatIsNoUtf8) {
  for (const std::string from : {"--model", "--router"}) {
    TestProcess process({RUNAHEAD_BINARY, "tokenize", from, "127.0.0.1:1", "--json", "A\xff\xfe"});
    EXPECT_EQ(process.Wait(), 2) << from;
    EXPECT_EQ(process.out(), "");
    EXPECT_THAT(process.err(), HasSubstr("TEXT: ")) << from;
  }
}

TEST(ModelsCommand, ListsThem) {
  FakeInference router([](const v1::GenerateRequest&, Writer&) { return absl::OkStatus(); });
  TestProcess text({RUNAHEAD_BINARY, "models", "--router", router.address()});
  EXPECT_EQ(text.Wait(), 0);
  EXPECT_THAT(text.out(), StartsWith("fake-model: "));
  TestProcess json({RUNAHEAD_BINARY, "models", "--router", router.address(), "--json"});
  EXPECT_EQ(json.Wait(), 0);
  EXPECT_EQ(nlohmann::json::parse(json.out())["models"][0]["name"], "fake-model");
}

TEST(Usage, IsExplainedOnStderrWithExitCode2) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"fly"},
      {"generate"},
      {"generate", "--router", "127.0.0.1:1"},
      {"generate", "--router", "nowhere", "--prompt", "a"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "a", "--token-ids", "1"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "a", "--top-k", "many"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "a", "--timeout", "0"},
      {"chat"},
      {"tokenize", "A"},
      {"detokenize", "1"},
      {"detokenize", "--router", "127.0.0.1:1", "x"},
      {"tokenize", "--model", "m", "--router", "127.0.0.1:1", "A"},
      {"models", "--router", "nowhere"},
      {"pull", "no-such-model"},
      {"up"},
      {"up", "--model", "/no/such/file"},
      {"up", "--model", "/dev/null", "--prefill", "0"},
      {"up", "--model", "/dev/null", "--kv-bits", "5"}};
  for (std::vector<std::string> args : wrong) {
    args.insert(args.begin(), RUNAHEAD_BINARY);
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 2) << ::testing::PrintToString(args);
    EXPECT_EQ(process.out(), "");
    EXPECT_NE(process.err(), "") << ::testing::PrintToString(args);
  }
}

TEST(Usage, SaysWhichFlagWhichValueAndWhatIsAllowed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{}, "runahead: a command is missing; the commands are up, generate, chat"},
      {{"generat"},
       "runahead: there is no command 'generat'; the commands are up, generate, chat, tokenize, detokenize, health, "
       "models, cache, pull, "
       "trace, profile, bench, "
       "plan, keys, kvpr; did you mean generate?"},
      {{"--verson"}, "runahead: there is no flag --verson; did you mean --version?"},
      {{"generate"}, "runahead generate: missing: --router ADDR: Where the router listens"},
      {{"generate", "--ruter", "127.0.0.1:1"}, "runahead generate: there is no flag --ruter; did you mean --router?"},
      {{"generate", "--router"}, "runahead generate: no value for --router ADDR: Where"},
      {{"generate", "--router", "nowhere"}, "runahead generate: nothing to go on from: give exactly one of --prompt"},
      {{"generate", "--router", "nowhere", "--prompt", "a"},
       "runahead generate: --router: 'nowhere' is not an address"},
      {{"generate", "--router", "a:1", "--top-k", "many"},
       "--top-k: 'many' is not a whole number from -2147483648 to 2147483647"},
      {{"generate", "--router", "a:1", "--top-p", "most"}, "--top-p: 'most' is not a number"},
      {{"generate", "--router", "a:1", "--seed", "-1"}, "--seed: '-1' is not a whole number from 0 to 2^64 - 1"},
      {{"generate", "--router", "a:1", "--stop-id", "x"}, "--stop-id: 'x' is not a whole number from"},
      {{"generate", "--router", "a:1", "--top-k", "1", "--top-k", "2"}, "--top-k: given 2 times; allowed: once"},
      {{"generate", "--router", "a:1", "--stop-id", "1", "2"}, "'2' is one word too many: quote a text with blanks"},
      {{"generate", "--router", "a:1", "--json=maybe"}, "--json: 'maybe' is neither true nor false"},
      {{"tokenize", "--model", "m"}, "runahead tokenize: missing: TEXT: The text"},
      {{"up", "--prefil", "2"}, "runahead up: there is no flag --prefil; did you mean --prefill?"},
      {{"up"}, "runahead up: missing: --model PATH: GGUF file, or Hugging Face folder, of the model"},
      {{"up", "--model", "/no/such/file"}, "runahead up: --model: cannot read the file /no/such/file: No such file"}};
  for (std::pair<std::vector<std::string>, std::string> each : wrong) {
    each.first.insert(each.first.begin(), RUNAHEAD_BINARY);
    TestProcess process(each.first);
    EXPECT_EQ(process.Wait(), 2) << each.second;
    EXPECT_THAT(process.err(), HasSubstr(each.second));
  }
}

TEST(Usage, HelpReadsWell) {
  for (const std::string command :
       {"up", "generate", "chat", "tokenize", "detokenize", "models", "cache", "pull", "profile", "kvpr"}) {
    TestProcess process({RUNAHEAD_BINARY, command, "--help"});
    EXPECT_EQ(process.Wait(), 0);
    EXPECT_THAT(process.out(), HasSubstr("Usage: runahead " + command + " ")) << "not the binary's path";
    EXPECT_THAT(process.out(), Not(HasSubstr("..."))) << "a repeated flag takes one value each time";
    EXPECT_THAT(process.out(), Not(HasSubstr("\n\n\n")));
  }
}

TEST(Usage, HelpAndVersionGoToStdout) {
  for (const std::string command :
       {"", "up", "generate", "chat", "tokenize", "detokenize", "models", "cache", "pull", "profile", "kvpr"}) {
    std::vector<std::string> args = {RUNAHEAD_BINARY, "--help"};
    if (!command.empty()) args.insert(args.begin() + 1, command);
    TestProcess process(args);
    EXPECT_EQ(process.Wait(), 0);
    EXPECT_THAT(process.out(), HasSubstr("Usage:")) << command;
    EXPECT_EQ(process.err(), "");
  }
  TestProcess version({RUNAHEAD_BINARY, "--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.out(), StartsWith("runahead "));
}

}  // namespace
}  // namespace runahead
