#include "client/generate/generate_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Parsed {
  GenerateFlags flags;
  bool ok = true;  // for CLI11
};

std::unique_ptr<Parsed> Parse(std::vector<std::string> args) {
  auto parsed = std::make_unique<Parsed>();
  CLI::App app;
  parsed->flags.AddTo(app);
  std::vector<const char*> argv = {"runahead"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError&) {
    parsed->ok = false;
  }
  return parsed;
}

// With --router, which all need.
absl::StatusOr<v1::GenerateRequest> Request(std::vector<std::string> args) {
  args.insert(args.begin(), {"--router", "127.0.0.1:1"});
  const auto parsed = Parse(std::move(args));
  if (!parsed->ok) return absl::AbortedError("refused by CLI11");
  return parsed->flags.Request();
}

TEST(GenerateFlags, SendsNothingThatWasNotTyped) {
  const auto request = Request({"--prompt", "Hello"});
  ASSERT_TRUE(request.ok()) << request.status();
  v1::GenerateRequest expected;
  expected.set_prompt("Hello");
  expected.mutable_sampling();
  expected.mutable_stop();
  EXPECT_EQ(request->SerializeAsString(), expected.SerializeAsString());
}

TEST(GenerateFlags, SendsEverySamplingFlag) {
  const auto request = Request({"--token-ids",
                                "1,2,3",
                                "--model",
                                "m",
                                "--max-tokens",
                                "0",
                                "--temperature",
                                "-1",
                                "--top-k",
                                "-5",
                                "--top-p",
                                "nan",
                                "--min-p",
                                "0.25",
                                "--repetition-penalty",
                                "1.5",
                                "--presence-penalty",
                                "-2",
                                "--frequency-penalty",
                                "0.5",
                                "--seed",
                                "18446744073709551615",
                                "--logit-bias",
                                "50256=-100",
                                "--logit-bias",
                                "3=2.5",
                                "--min-tokens",
                                "5",
                                "--bad-word",
                                "a=b,c",
                                "--bad-word",
                                "d",
                                "--truncate-prompt",
                                "9",
                                "--user",
                                "someone",
                                "--request-id",
                                "mine",
                                "--stop",
                                "a,b",
                                "--stop",
                                "",
                                "--stop-id",
                                "7",
                                "--stop-id",
                                "8",
                                "--logprobs",
                                "4",
                                "--ignore-eos"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model(), "m");
  EXPECT_THAT(request->token_ids().ids(), ElementsAre(1, 2, 3));
  const v1::SamplingParams& sampling = request->sampling();
  EXPECT_EQ(sampling.temperature(), -1) << "the service refuses it, not we";
  EXPECT_EQ(sampling.top_k(), -5);
  EXPECT_TRUE(std::isnan(sampling.top_p()));
  EXPECT_EQ(sampling.min_p(), 0.25f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.presence_penalty(), -2);
  EXPECT_EQ(sampling.frequency_penalty(), 0.5f);
  EXPECT_EQ(sampling.seed(), 18446744073709551615u);
  EXPECT_EQ(sampling.logprobs(), 4);
  EXPECT_EQ(request->stop().max_tokens(), 0);
  EXPECT_TRUE(request->stop().has_max_tokens());
  EXPECT_THAT(request->stop().stop(), ElementsAre("a,b", ""));
  EXPECT_THAT(request->stop().stop_ids(), ElementsAre(7, 8));
  EXPECT_TRUE(request->stop().ignore_eos());
  EXPECT_EQ(sampling.logit_bias().at(50256), -100);
  EXPECT_EQ(sampling.logit_bias().at(3), 2.5f);
  EXPECT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(request->stop().min_tokens(), 5);
  EXPECT_THAT(request->stop().bad_words(), ElementsAre("a=b,c", "d"));
  EXPECT_EQ(request->truncate_prompt(), 9);
  EXPECT_EQ(request->user(), "someone");
  EXPECT_EQ(request->request_id(), "mine");
  EXPECT_FALSE(request->has_experiment());
}

TEST(GenerateFlags, PriorityIsNormalUnlessItIsSaidToBeLow) {
  EXPECT_EQ(Request({"--prompt", "p"})->priority(), v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(Request({"--prompt", "p", "--priority", "low"})->priority(), v1::PRIORITY_LOW);
}

TEST(GenerateFlags, RefusesATenantThatTheServiceWouldRefuse) {
  EXPECT_TRUE(Request({"--prompt", "p", "--tenant", std::string(64, 'x')}).ok());
  for (const std::string& tenant :
       {std::string(), std::string(65, 'x'), std::string("a b"), std::string("B\xc3\xbcro"), std::string("a\n")}) {
    const auto request = Request({"--prompt", "p", "--tenant", tenant});
    EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << tenant;
    EXPECT_THAT(request.status().message(), HasSubstr("--tenant")) << tenant;
  }
}

TEST(GenerateFlags, TakesTextAsItStands) {
  for (const std::string text : {"[a,b]", "\"quoted\"", "--model", "-x", "a=b", "", "\n", "%1"}) {
    const auto request = Request({"--prompt", text});
    ASSERT_TRUE(request.ok()) << text << ": " << request.status();
    EXPECT_EQ(request->prompt(), text);
    EXPECT_EQ(request->input_case(), v1::GenerateRequest::kPrompt);
    const auto stop = Request({"--prompt", "p", "--stop", text});
    ASSERT_TRUE(stop.ok()) << text;
    EXPECT_THAT(stop->stop().stop(), ElementsAre(text));
  }
}

TEST(GenerateFlags, KeepsTheOrderOfMessages) {
  const auto request = Request({"--message", "system:Be brief", "--message", "user:[Hi, you]"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->chat().messages_size(), 2);
  EXPECT_EQ(request->chat().messages(0).role(), "system");
  EXPECT_EQ(request->chat().messages(1).content(), "[Hi, you]");
}

TEST(GenerateFlags, ToolsAndVariablesGoWithAChat) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/tools.json");
  std::ofstream(path) << R"([{"name": "clock"}])";
  const auto request = Request({"--message", "user:Hi", "--tools", path, "--template-variable", "enable_thinking=false",
                                "--template-variable", "date=\"1 = 1\""});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->chat().tools(), R"([{"name": "clock"}])");
  EXPECT_EQ(request->chat().template_variables(), R"({"enable_thinking": false, "date": "1 = 1"})");
  EXPECT_EQ(Request({"--message", "user:Hi"})->chat().tools(), "");
  EXPECT_THAT(Request({"--prompt", "p", "--tools", path}).status().message(), HasSubstr("go with --message"));
  std::ofstream(path) << "{}";
  const auto refused = [](const std::string& flag, const std::string& value) {
    return std::string(Request({"--message", "user:Hi", flag, value}).status().message());
  };
  EXPECT_THAT(refused("--tools", path), HasSubstr("--tools: it is a dict, not a JSON array"));
  EXPECT_THAT(refused("--tools", "/no/such/file"), HasSubstr("--tools: cannot read /no/such/file"));
  EXPECT_THAT(refused("--template-variable", "x"), HasSubstr("--template-variable: 'x' has no name"));
  EXPECT_THAT(refused("--template-variable", "x=y"), HasSubstr("what 'x' is set to is no JSON"));
}

TEST(GenerateFlags, SaysWhereNothingIsToBeKept) {
  EXPECT_FALSE(Request({"--prompt", "p"})->no_cache());
  EXPECT_TRUE(Request({"--prompt", "p", "--no-cache"})->no_cache());
}

TEST(GenerateFlags, SendsExperimentsOnlyWhenTyped) {
  const auto request = Request({"--prompt", "p", "--width", "2", "--parts", "700,324", "--schedule", "kvr-even"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->experiment().width(), 2);
  EXPECT_THAT(request->experiment().parts(), ElementsAre(700, 324));
  EXPECT_EQ(request->experiment().schedule(), v1::SCHEDULE_KVR_EVEN);
  EXPECT_EQ(Request({"--prompt", "p", "--schedule", "single"})->experiment().schedule(), v1::SCHEDULE_SINGLE);
  EXPECT_EQ(Request({"--prompt", "p", "--schedule", "tsp"})->experiment().schedule(), v1::SCHEDULE_TSP);
  EXPECT_EQ(Request({"--prompt", "p", "--schedule", "tsp-causal"})->experiment().schedule(), v1::SCHEDULE_TSP_CAUSAL);
  EXPECT_THAT(Request({"--prompt", "p", "--schedule", "fast"}).status().message(),
              HasSubstr("'fast' is none of kvr, kvr-even, single, tsp, tsp-causal"));
}

TEST(GenerateFlags, WantsExactlyOneInput) {
  EXPECT_THAT(Request({}).status().message(), HasSubstr("exactly one of --prompt"));
  EXPECT_THAT(Request({"--prompt", "a", "--token-ids", "1"}).status().message(), HasSubstr("more than one kind"));
}

TEST(GenerateFlags, NamesTheFlagThatIsWrong) {
  EXPECT_THAT(Request({"--token-ids", "1,x"}).status().message(), HasSubstr("--token-ids: 'x'"));
  EXPECT_THAT(Request({"--message", "hello"}).status().message(), HasSubstr("--message: 'hello' has no role"));
  EXPECT_THAT(Request({"--prompt", "\xff"}).status().message(), HasSubstr("--prompt: is not valid UTF-8"));
  EXPECT_THAT(Request({"--prompt", "p", "--stop", "\xff"}).status().message(), HasSubstr("--stop: "));
  EXPECT_THAT(Request({"--prompt", "p", "--bad-word", "\xff"}).status().message(), HasSubstr("--bad-word: "));
  EXPECT_THAT(Request({"--prompt", "p", "--user", "\xff"}).status().message(), HasSubstr("--user: "));
  EXPECT_THAT(Request({"--prompt", "p", "--request-id", "\xff"}).status().message(), HasSubstr("--request-id: "));
  EXPECT_THAT(Request({"--prompt", "p", "--parts", "1;2"}).status().message(), HasSubstr("--parts: "));
  EXPECT_THAT(Request({"--prompt-file", "/no/such/file"}).status().message(), HasSubstr("cannot read /no/such/file"));
}

TEST(GenerateFlags, LeavesNumbersThatAreNoneToTheParser) {
  EXPECT_FALSE(Parse({"--router", "a:1", "--prompt", "p", "--top-k", "many"})->ok);
  for (const char* bias : {"5", "=1", "5=", "x=1", "5=y", "5=1=2"}) {
    EXPECT_FALSE(Parse({"--router", "a:1", "--prompt", "p", "--logit-bias", bias})->ok) << bias;
  }
  EXPECT_FALSE(Parse({"--router", "a:1", "--prompt", "p", "--max-tokens", "99999999999"})->ok);
  EXPECT_FALSE(Parse({"--router", "a:1", "--prompt", "p", "--no-such-flag"})->ok);
  EXPECT_FALSE(Parse({"--prompt", "p"})->ok) << "--router is missing";
}

TEST(GenerateFlags, ReadsThePromptFromAFileToTheByte) {
  const std::string path = absl::StrCat(::testing::TempDir(), "prompt.", getpid());
  std::ofstream(path, std::ios::binary) << "line one\n\nline three\n";
  const auto request = Request({"--prompt-file", path});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->prompt(), "line one\n\nline three\n");
  std::ofstream(path, std::ios::binary) << "\xfe";
  EXPECT_THAT(Request({"--prompt-file", path}).status().message(), HasSubstr("UTF-8"));
  unlink(path.c_str());
}

TEST(GenerateFlags, ReadsTheTimeoutInSeconds) {
  const std::vector<std::string> base = {"--router", "a:1", "--prompt", "p", "--timeout"};
  const auto timeout = [&](const std::string& value) {
    std::vector<std::string> args = base;
    args.push_back(value);
    return Parse(args)->flags.Timeout();
  };
  EXPECT_EQ(*timeout("0.5"), absl::Milliseconds(500));
  EXPECT_THAT(timeout("0").status().message(), HasSubstr("--timeout"));
  EXPECT_FALSE(timeout("-1").ok());
  EXPECT_FALSE(timeout("nan").ok());
  EXPECT_EQ(*Parse({"--router", "a:1", "--prompt", "p"})->flags.Timeout(), absl::InfiniteDuration());
}

TEST(GenerateFlags, SendsTheFormOfTheAnswer) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/form.", getpid());
  std::ofstream(path) << "root ::= \"a\"";
  const auto form = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--prompt", "Hello"});
    const auto request = Request(std::move(args));
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? request->structure() : v1::Structure();
  };
  EXPECT_EQ(form({"--json-schema", " {}"}).json_schema(), " {}");
  EXPECT_EQ(form({"--json-schema", path}).json_schema(), "root ::= \"a\"") << "a file, whatever is in it";
  EXPECT_TRUE(form({"--json-object"}).json_object());
  EXPECT_EQ(form({"--regex", "a+"}).regex(), "a+");
  EXPECT_EQ(form({"--grammar", path}).grammar(), "root ::= \"a\"");
  EXPECT_THAT(form({"--choice", "a,b", "--choice", "c"}).choice().texts(), ElementsAre("a,b", "c"));
  unlink(path.c_str());
  EXPECT_THAT(std::string(Request({"--prompt", "a", "--grammar", path}).status().message()), HasSubstr("--grammar: "));
  EXPECT_THAT(std::string(Request({"--prompt", "a", "--regex", "a", "--json-object"}).status().message()),
              HasSubstr("more than one form"));
}

}  // namespace
}  // namespace runahead
