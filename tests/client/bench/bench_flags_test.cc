#include "client/bench/bench_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<BenchFlags> ParsedFlags(const std::vector<std::string>& args) {
  auto flags = std::make_unique<BenchFlags>();
  CLI::App app;
  flags->AddTo(app);
  std::vector<const char*> argv = {"bench"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  EXPECT_NO_THROW(app.parse(static_cast<int>(argv.size()), argv.data()));
  return flags;
}

absl::StatusOr<BenchPlan> Plan(std::vector<std::string> args) {
  args.insert(args.begin(), {"--router", "127.0.0.1:1"});
  return ParsedFlags(args)->Read();
}

TEST(BenchFlags, Defaults) {
  const auto plan = Plan({});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->url.has_value());
  EXPECT_EQ(plan->load.requests, 100);
  EXPECT_EQ(plan->load.concurrency, 100);
  EXPECT_FALSE(plan->load.planned);
  EXPECT_EQ(plan->load.duration, absl::InfiniteDuration());
  EXPECT_EQ(plan->warmup, 1);
  EXPECT_TRUE(std::isinf(plan->rate));
  EXPECT_EQ(plan->workload.input.least, 256);
  EXPECT_EQ(plan->workload.output.most, 128);
  EXPECT_TRUE(plan->workload.ignore_eos);
  EXPECT_EQ(plan->timeout, absl::Seconds(600));
  const auto again = Plan({});
  ASSERT_TRUE(again.ok());
  EXPECT_NE(plan->workload.seed, again->workload.seed) << "no run is answered from what another left";
}

TEST(BenchFlags, AllOfThem) {
  const auto plan = Plan({"--prompts",       "5000",
                          "--input-tokens",  "20-40",
                          "--output-tokens", "7",
                          "--shared-prefix", "9",
                          "--chat",          "--no-ignore-eos",
                          "--seed",          "3",
                          "--rate",          "2.5",
                          "--concurrency",   "64",
                          "--duration",      "30",
                          "--warmup",        "0",
                          "--timeout",       "5",
                          "--goodput",       "ttft:100"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->load.requests, 5000);
  EXPECT_EQ(plan->workload.input.most, 40);
  EXPECT_EQ(plan->workload.output.least, 7);
  EXPECT_EQ(plan->workload.shared_prefix, 9);
  EXPECT_TRUE(plan->chat);
  EXPECT_FALSE(plan->workload.ignore_eos);
  EXPECT_EQ(plan->workload.seed, 3u);
  EXPECT_EQ(plan->rate, 2.5);
  EXPECT_TRUE(plan->load.planned);
  EXPECT_EQ(plan->load.concurrency, 64);
  EXPECT_EQ(plan->load.duration, absl::Seconds(30));
  EXPECT_EQ(plan->warmup, 0);
  EXPECT_EQ(plan->timeout, absl::Seconds(5));
  EXPECT_EQ(plan->objectives.ttft, absl::Milliseconds(100));
}

TEST(BenchFlags, AUrlIsInPlaceOfARouter) {
  const auto plan = ParsedFlags({"--url", "http://h:80/v1", "--ids"})->Read();
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->url.has_value());
  EXPECT_EQ(plan->url->server.host, "h");
  EXPECT_TRUE(plan->ids);
  EXPECT_THAT(ParsedFlags({})->Read().status().message(), HasSubstr("exactly one of --router ADDR and --url URL"));
}

TEST(BenchFlags, JsonMayHaveAFile) {
  EXPECT_FALSE(ParsedFlags({"--chat"})->json());
  const auto printed = ParsedFlags({"--json", "--chat"});
  EXPECT_TRUE(printed->json());
  EXPECT_EQ(printed->json_file(), "");
  const auto saved = ParsedFlags({"--json", "x.json", "--chat"});
  EXPECT_TRUE(saved->json());
  EXPECT_EQ(saved->json_file(), "x.json");
}

TEST(BenchFlags, RefusalsNameTheFlag) {
  struct Case {
    std::vector<std::string> args;
    std::string says;
  };
  for (const Case& wrong : std::vector<Case>{{{"--url", "http://h"}, "exactly one"},
                                             {{"--prompts", "0"}, "--prompts: 0 is out of range"},
                                             {{"--input-tokens", "9-3"}, "--input-tokens: '9-3'"},
                                             {{"--output-tokens", "x"}, "--output-tokens: 'x'"},
                                             {{"--shared-prefix", "-1"}, "--shared-prefix: -1"},
                                             {{"--rate", "0"}, "--rate: 0"},
                                             {{"--rate", "nan"}, "--rate: nan"},
                                             {{"--concurrency", "5000"}, "--concurrency: 5000"},
                                             {{"--duration", "0"}, "--duration: 0"},
                                             {{"--timeout", "-3"}, "--timeout: -3"},
                                             {{"--warmup", "-1"}, "--warmup: -1"},
                                             {{"--goodput", "itl:4"}, "--goodput: 'itl:4'"},
                                             {{"--model", "\xff"}, "--model: "},
                                             {{"--ids"}, "--ids: goes with --url"},
                                             {{"--file", "/nowhere/at/all"}, "--file: "}}) {
    const absl::Status status = Plan(wrong.args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong.says << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(wrong.says));
  }
  const auto url = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--url", "http://h"});
    return std::string(ParsedFlags(more)->Read().status().message());
  };
  EXPECT_THAT(url({"--ids", "--chat"}), HasSubstr("--ids: "));
  EXPECT_THAT(url({"--tls"}), HasSubstr("--tls: "));
  EXPECT_THAT(url({"--api-key", "a b"}), HasSubstr("--api-key"));
  EXPECT_THAT(std::string(ParsedFlags({"--url", "h"})->Read().status().message()), HasSubstr("--url: "));
}

TEST(BenchFlags, AFilesLinesAreTheRequests) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/bench-prompts-", getpid());
  std::ofstream(path) << "{\"prompt\": \"One\"}\n{\"prompt\": \"Two\", \"max_tokens\": 4}\n";
  const auto plan = Plan({"--file", path, "--output-tokens", "9"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->load.requests, 2);
  ASSERT_EQ(plan->from_file.size(), 2u);
  EXPECT_EQ(plan->from_file[0].max_tokens, 9);
  EXPECT_FALSE(plan->from_file[0].ignore_eos);
  const auto chats = Plan({"--file", path, "--chat", "--prompts", "1"});
  ASSERT_TRUE(chats.ok()) << chats.status();
  EXPECT_EQ(chats->load.requests, 1);
  EXPECT_EQ(chats->from_file[1].messages[0].content, "Two");
  EXPECT_THAT(Plan({"--file", path, "--prompts", "3"}).status().message(),
              HasSubstr("--prompts: 3 are more than the 2 of --file"));
  unlink(path.c_str());
}

}  // namespace
}  // namespace runahead
