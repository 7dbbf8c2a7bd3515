#include "server/base/config_flags.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/base/listed_worker.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using testing::DeclareWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ListedWorker;

struct FlagOptions {
  int max_queue = 256;
  bool experiments = false;
  bool eager = true;
  std::string model;
  std::vector<std::string> stops;
  std::vector<ListedWorker> workers;
  int ready_fd = -1;
};

struct Outcome {
  std::optional<int> exit_code;
  FlagOptions options;
  std::string out;
  std::string err;
};

Outcome Parse(std::vector<const char*> args) {
  Outcome outcome;
  FlagOptions& o = outcome.options;
  ConfigSchema schema;
  schema.Int("max_queue", &o.max_queue, {.min = 1, .max = 1000}, "Requests that may wait");
  schema.Bool("experiments", &o.experiments, "Allow experiments");
  schema.Bool("eager", &o.eager, "Start at once");
  schema.String("model", &o.model, {.required = true}, "Path of the model");
  schema.Strings("stops", &o.stops, {}, "Stops");
  schema.Maps<ListedWorker>("workers", &o.workers, DeclareWorker, {}, "The workers");
  schema.Int("ready_fd", &o.ready_fd, {.min = -1}, "Where to say ready");
  schema.FlagOnly();
  schema.Gone("old_way", "on", "there is one way: leave it out");
  args.insert(args.begin(), "runahead-test");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.exit_code = ParseCommandLine(static_cast<int>(args.size()), args.data(), "A test process.", schema);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_(absl::StrCat(::testing::TempDir(), "/config_flags_test.", getpid(), ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

TEST(ConfigFlags, FlagsOfEveryType) {
  const Outcome outcome =
      Parse({"--max-queue", "7", "--experiments", "--eager=false", "--model=m.gguf", "--stops", "a,b", "--stops", "-c",
             "--workers", "role=prefill,address=127.0.0.1:1", "--workers=role=decode,address=[::1]:2", "--ready-fd=5"});
  ASSERT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.max_queue, 7);
  EXPECT_TRUE(outcome.options.experiments);
  EXPECT_FALSE(outcome.options.eager);
  EXPECT_EQ(outcome.options.model, "m.gguf");
  EXPECT_THAT(outcome.options.stops, ElementsAre("a,b", "-c"));
  ASSERT_EQ(outcome.options.workers.size(), 2);
  EXPECT_EQ(outcome.options.workers[0].address, "127.0.0.1:1");
  EXPECT_EQ(outcome.options.workers[1].role, "decode");
  EXPECT_EQ(outcome.options.ready_fd, 5);
}

TEST(ConfigFlags, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const TempFile file("max_queue: 5\nmodel: file\nexperiments: true\nstops: [x, y]\n");
  const Outcome outcome = Parse({"--stops", "z", "--model", "flag", "--config", file.path()});
  ASSERT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.max_queue, 5);
  EXPECT_EQ(outcome.options.model, "flag");
  EXPECT_TRUE(outcome.options.experiments);
  EXPECT_TRUE(outcome.options.eager);
  EXPECT_THAT(outcome.options.stops, ElementsAre("z"));
}

TEST(ConfigFlags, HelpShowsEveryFlagWithItsDocLimitsAndDefault) {
  const Outcome outcome = Parse({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("A test process."), HasSubstr("--max-queue"), HasSubstr("Requests that may wait"),
                    HasSubstr("a whole number from 1 to 1000"), HasSubstr("(default 256)"), HasSubstr("--config"),
                    HasSubstr("--model TEXT"), HasSubstr("(required)"), HasSubstr("--workers KEY=VALUE,..")));
  for (const absl::string_view line : absl::StrSplit(outcome.out, '\n')) EXPECT_LE(line.size(), 100) << line;
}

TEST(ConfigFlags, VersionIsTheBuilds) {
  const Outcome outcome = Parse({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("0."));
}

TEST(ConfigFlags, WrongUsageExitsTwoAndNamesTheFlag) {
  const struct {
    std::vector<const char*> args;
    const char* part;
  } cases[] = {
      {{"--model", "m", "--max-queue", "0"}, "--max-queue: 0 is out of range; allowed: a whole number from 1 to 1000"},
      {{"--model", "m", "--max-queue", "x"}, "--max-queue: 'x' is not a whole number"},
      {{"--model", "m", "--max-queue", "1", "--max-queue", "2"}, "--max-queue: given 2 times"},
      {{"--model", "m", "--max-queue"}, "runahead-test: no value for --max-queue N: Requests that may wait"},
      {{"--model", "m", "--max-quue", "2"}, "there is no flag --max-quue; did you mean --max-queue?"},
      {{"--model", "m", "--experiments=maybe"}, "--experiments: 'maybe' is neither; allowed: true or false"},
      {{"--model", "m", "stray"}, "runahead-test: 'stray' is one word too many"},
      {{"--model", "m", "--workers", "prefill"}, "--workers: 'prefill' is not key=value"},
      {{"--model", "m", "--workers", "role=prefill"}, "--workers: workers[0].address is missing"},
      {{"--model", "m", "--workers", "role=prefill,role=decode,address=a:1"}, "given a second time"},
      {{"--model", "m", "--config", "/nonexistent.yaml"}, "/nonexistent.yaml"},
      {{}, "runahead-test: missing: --model TEXT: Path of the model"},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Parse(c.args);
    EXPECT_EQ(outcome.exit_code, 2) << c.part;
    EXPECT_THAT(outcome.err, HasSubstr(c.part));
  }
}

TEST(ConfigFlags, AFlagThatIsGoneMaySayWhatHappensAnyway) {
  EXPECT_FALSE(Parse({"--model", "m", "--old-way", "on"}).exit_code.has_value());
  const Outcome outcome = Parse({"--model", "m", "--old-way=off"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("--old-way: 'off' is gone: there is one way: leave it out; allowed: on, or nothing"));
  EXPECT_THAT(Parse({"--help"}).out, ::testing::Not(HasSubstr("old-way")));
}

TEST(ConfigFlags, AFlagDoesNotHideAnErrorInTheFile) {
  const TempFile file("max_queue: 0\nmodel: m\n");
  const Outcome outcome = Parse({"--config", file.path(), "--max-queue", "3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr(":1: max_queue: 0 is out of range"));
}

}  // namespace
}  // namespace runahead
