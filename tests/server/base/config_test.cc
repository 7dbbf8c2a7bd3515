#include "server/base/config.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
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
using ::testing::StartsWith;

struct Options {
  int64_t max_queue = 256;
  int threads = 1;
  double top_p = 1;
  bool experiments = false;
  std::string model = "none";
  int64_t budget = 0;
  absl::Duration drain = absl::Seconds(30);
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> stops = {"x"};
  std::vector<ListedWorker> workers;
  int ready_fd = -1;
};

void Declare(ConfigSchema& schema, Options& o) {
  schema.Int("max_queue", &o.max_queue, {.min = 1, .max = 65536}, "Requests that may wait");
  schema.Int("threads", &o.threads, {.min = 1}, "Threads");
  schema.Double("top_p", &o.top_p, {.min = 0, .max = 1}, "A share");
  schema.Bool("experiments", &o.experiments, "Allow experiments");
  schema.String("model", &o.model, {.allow_empty = false}, "A name");
  schema.Bytes("budget", &o.budget, {.min = 0}, "Memory");
  schema.Duration("drain", &o.drain, {.max = absl::Minutes(10)}, "Time to finish");
  schema.Address("listen", &o.listen, {.any_port = true}, "Where to listen");
  schema.Strings("stops", &o.stops, {.max_items = 2}, "Stops");
  schema.Maps<ListedWorker>("workers", &o.workers, DeclareWorker, {.min_items = 1}, "Workers");
  schema.Int("ready_fd", &o.ready_fd, {.min = -1}, "Where to say ready");
  schema.FlagOnly();
  schema.Gone("transport", "tcp", "everything goes over TCP: leave it out");
}

absl::Status Read(const std::string& text, Options& options) {
  ConfigSchema schema;
  Declare(schema, options);
  return ReadConfigText(text, "r.yaml", schema);
}

std::string Refusal(const std::string& text) {
  Options options;
  const absl::Status status = Read(text, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status << "\nfor\n" << text;
  return std::string(status.message());
}

TEST(Config, ReadsEveryType) {
  Options o;
  ASSERT_TRUE(Read("max_queue: 7\nthreads: 3\ntop_p: 0.25\nexperiments: true\nmodel: \"12\"\nbudget: 8GiB\n"
                   "drain: 1m30s\nlisten: '[::1]:9000'\nstops: [a, \"b c\"]\n"
                   "workers:\n  - {role: prefill, address: 127.0.0.1:1}\n  - role: decode\n    address: host:65535\n",
                   o)
                  .ok());
  EXPECT_EQ(o.max_queue, 7);
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.top_p, 0.25);
  EXPECT_TRUE(o.experiments);
  EXPECT_EQ(o.model, "12");
  EXPECT_EQ(o.budget, int64_t{8} << 30);
  EXPECT_EQ(o.drain, absl::Seconds(90));
  EXPECT_EQ(o.listen, "[::1]:9000");
  EXPECT_THAT(o.stops, ElementsAre("a", "b c"));
  ASSERT_EQ(o.workers.size(), 2);
  EXPECT_EQ(o.workers[0].role, "prefill");
  EXPECT_EQ(o.workers[1].address, "host:65535");
}

TEST(Config, KeepsDefaultsOfWhatIsNotGiven) {
  for (const char* text : {"", "# nothing\n", "---\n", "max_queue: 256\n"}) {
    Options o;
    ASSERT_TRUE(Read(text, o).ok()) << text;
    EXPECT_EQ(o.max_queue, 256);
    EXPECT_THAT(o.stops, ElementsAre("x"));
  }
}

TEST(Config, EveryRefusalNamesPlaceKeyAndWhatIsAllowed) {
  const struct {
    const char* text;
    const char* start;
    const char* part;
  } cases[] = {
      {"\n\nmax_queue: 0\n", "r.yaml:3: max_queue: 0 is out of range", "allowed: a whole number from 1 to 65536"},
      {"max_queue: 65537", "r.yaml:1: max_queue: 65537 is out of range", "65536"},
      {"max_queue: 1.5", "r.yaml:1: max_queue: '1.5' is not a whole number", "allowed: a whole number"},
      {"max_queue: \"5\"", "r.yaml:1: max_queue: '5' is a quoted string", "allowed: a whole number"},
      {"max_queue: [1]", "r.yaml:1: max_queue: is a list", "allowed: a whole number"},
      {"max_queue: {a: 1}", "r.yaml:1: max_queue: is a map", "allowed: a whole number"},
      {"max_queue:", "r.yaml:1: max_queue: has no value", "allowed: a whole number"},
      {"max_queue: 99999999999999999999", "r.yaml:1: max_queue: ", "not a whole number"},
      {"threads: 2147483648", "r.yaml:1: threads: 2147483648 is out of range", "from 1 to 2147483647"},
      {"\"a\\e[31m\": 1", "r.yaml:1: a\\x1b[31m: unknown key", "allowed: max_queue"},
      {"model: \"\\\x1b\"", "r.yaml:1: not valid YAML: unknown escape character: \\x1b", ""},
      {"top_p: 1\v2", "r.yaml:1: top_p: '1\\x0b2' is not a finite number", "from 0 to 1"},
      {"top_p: \v2", "r.yaml:1: top_p: \\x0b2 is out of range", "from 0 to 1"},
      {"threads: \"\\e[31m\"", "r.yaml:1: threads: '\\x1b[31m' is a quoted string", "allowed: a whole number"},
      {"top_p: .nan", "r.yaml:1: top_p: '.nan' is not a finite number", "from 0 to 1"},
      {"top_p: nan", "r.yaml:1: top_p: 'nan' is not a finite number", "from 0 to 1"},
      {"top_p: 1.01", "r.yaml:1: top_p: 1.01 is out of range", "from 0 to 1"},
      {"experiments: yes", "r.yaml:1: experiments: 'yes' is neither", "allowed: true or false"},
      {"model: ''", "r.yaml:1: model: is empty", "allowed: text that is not empty"},
      {"budget: 8G", "r.yaml:1: budget: '8G' is not a size", "8GiB"},
      {"budget: -1", "r.yaml:1: budget: '-1' is out of range", "at least 0"},
      {"budget: 9999999999GiB", "r.yaml:1: budget: '9999999999GiB' is out of range", "at least 0"},
      {"drain: 30", "r.yaml:1: drain: '30' is not a duration", "30s"},
      {"drain: 11m", "r.yaml:1: drain: 11m is out of range", "to 10m"},
      {"drain: inf", "r.yaml:1: drain: inf is out of range", "to 10m"},
      {"listen: localhost", "r.yaml:1: listen: 'localhost' is not an address", "host:port"},
      {"stops: a", "r.yaml:1: stops: is not a list", "allowed: a list of up to 2 strings"},
      {"stops: [a, b, c]", "r.yaml:1: stops: has 3 items, too many", "up to 2"},
      {"stops: [[a]]", "r.yaml:1: stops: is a list", "strings"},
      {"workers: []", "r.yaml:1: workers: has 0 items, too few", "1 to 4096 maps"},
      {"workers: 3", "r.yaml:1: workers: is not a list", "role (one of prefill, decode)"},
      {"workers:\n  - {role: prefil, address: a:1}", "r.yaml:2: workers[0].role: 'prefil' is unknown", "mean prefill"},
      {"workers:\n  - role: decode\n", "r.yaml:2: workers[0].address is missing", "host:port"},
      {"workers:\n  - {role: decode, address: a:0}", "r.yaml:2: workers[0].address: 'a:0' has port 0", "1 to 65535"},
      {"workers:\n  - {role: decode, adress: a:1}", "r.yaml:2: workers[0].adress: unknown key", "mean 'address'?"},
      {"workers: [7]", "r.yaml:1: not a map", "key: value"},
      {"max_queu: 1", "r.yaml:1: max_queu: unknown key", "did you mean 'max_queue'?"},
      {"zzz: 1", "r.yaml:1: zzz: unknown key", "allowed: max_queue, threads"},
      {"max_queue: 1\nthreads: 1\nmax_queue: 2", "r.yaml:3: max_queue: given a second time", "allowed: once"},
      {"ready_fd: 3", "r.yaml:1: ready_fd: only allowed as flag", "--ready-fd"},
      {"[1, 2]", "r.yaml:1: not a map", "key: value"},
      {"a: b: c", "r.yaml:1: not valid YAML", ""},
      {"model: x\nmodel2: [", "r.yaml:", "not valid YAML"},
      {"? [a]\n: 1", "r.yaml:1: a key is not a plain word", ""},
      {"a: 1\n---\nb: 2", "r.yaml: holds more than one YAML document", "allowed: one"},
      {",", "r.yaml:", ""},
      {",max_queue: 1\nthreads: 1\n", "r.yaml: holds more than one YAML document", "no comma before the first key"},
      {"model: *nope", "r.yaml:1: not valid YAML", ""},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Refusal(c.text), AllOf(StartsWith(c.start), HasSubstr(c.part))) << c.text;
  }
}

TEST(Config, AKeyThatIsGoneMaySayWhatHappensAnyway) {
  Options o;
  EXPECT_TRUE(Read("transport: tcp", o).ok());
  EXPECT_TRUE(Read("transport: 'tcp'", o).ok());
  EXPECT_EQ(Refusal("threads: 1\ntransport: ucx"),
            "r.yaml:2: transport: 'ucx' is gone: everything goes over TCP: leave it out; allowed: tcp, or nothing");
  EXPECT_THAT(Refusal("transport: [tcp]"), HasSubstr("transport: is a list"));
  EXPECT_THAT(Refusal("transport: tcp\ntransport: tcp"), HasSubstr("given a second time"));
  EXPECT_THAT(Refusal("zzz: 1"), ::testing::Not(HasSubstr("transport"))) << "nobody is pointed to it";
}

TEST(Config, ARefusedMapsItemShowsNoPlaceTwice) {
  const std::string message = Refusal("workers:\n  - {role: x, address: a:1}");
  EXPECT_EQ(message.rfind("r.yaml"), 0) << message;
}

TEST(Config, RefusesAliasBombsAndDeepNesting) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) absl::StrAppend(&bomb, j == 0 ? "" : ", ", "*a", i - 1);
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_THAT(Refusal(bomb), HasSubstr("too large"));
  EXPECT_THAT(Refusal("model: " + std::string(100, '[') + std::string(100, ']')), StartsWith("r.yaml"));
  EXPECT_THAT(Refusal("model: " + std::string(100'000, '[')), StartsWith("r.yaml"));
}

TEST(Config, FinishAsksForRequiredKeys) {
  std::string model;
  ConfigSchema schema;
  schema.String("model", &model, {.required = true}, "A path");
  ASSERT_TRUE(ReadConfigText("", "w.yaml", schema).ok());
  EXPECT_EQ(schema.Finish("w.yaml").message(), "w.yaml: model is missing; allowed: text");
  ASSERT_TRUE(ReadConfigText("model: m", "w.yaml", schema).ok());
  EXPECT_TRUE(schema.Finish("w.yaml").ok());
}

TEST(Config, ReadsListsOfNumbers) {
  std::vector<int64_t> parts;
  std::vector<double> factors = {1};
  ConfigSchema schema;
  schema.Ints("parts", &parts, {.min = 1, .max = 99}, {.min_items = 1, .max_items = 3}, "Parts");
  schema.Doubles("factors", &factors, {.min = 0.5}, {}, "Factors");
  EXPECT_EQ(schema.keys()[1].default_text, "1");
  ASSERT_TRUE(ReadConfigText("parts: [7, 99]\nfactors:\n- 1.5\n- 2e3\n", "n.yaml", schema).ok());
  EXPECT_THAT(parts, ElementsAre(7, 99));
  EXPECT_THAT(factors, ElementsAre(1.5, 2000));
  for (const auto& [text, refusal] :
       {std::pair("parts: 7",
                  "n.yaml:1: parts: is not a list; allowed: a list of 1 to 3 items, each a whole number from "
                  "1 to 99"),
        std::pair("parts: []", "n.yaml:1: parts: has 0 items, too few; allowed: "),
        std::pair("parts: [1, 100]", "n.yaml:1: parts: [1]: 100 is out of range; allowed: "),
        std::pair("factors: [nan]", "n.yaml:1: factors: [0]: 'nan' is not a finite number; allowed: "),
        std::pair("factors: [[1]]", "n.yaml:1: factors: [0]: is a list; allowed: ")}) {
    EXPECT_THAT(std::string(ReadConfigText(text, "n.yaml", schema).message()), StartsWith(refusal));
  }
  EXPECT_THAT(parts, ElementsAre(7, 99)) << "kept";
}

TEST(Config, ParsesATextWithoutASchema) {
  const auto value = ParseConfigText("- [1, 'a']\n", "p.yaml");
  ASSERT_TRUE(value.ok());
  ASSERT_EQ(value->kind, ConfigValue::Kind::kList);
  ASSERT_EQ(value->items[0].items.size(), 2);
  EXPECT_EQ(value->items[0].items[1].scalar, "a");
  EXPECT_EQ(value->items[0].where, "p.yaml:1");
  EXPECT_EQ(ParseConfigText("", "p.yaml")->kind, ConfigValue::Kind::kNull);
  EXPECT_THAT(std::string(ParseConfigText("[", "p.yaml").status().message()), HasSubstr("p.yaml:"));
}

TEST(Config, ReadsFilesAndNamesTheOneThatIsMissing) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/config_test.", getpid(), ".yaml");
  std::ofstream(path) << "max_queue: 9\n";
  Options o;
  ConfigSchema schema;
  Declare(schema, o);
  ASSERT_TRUE(ReadConfigFile(path, schema).ok());
  EXPECT_EQ(o.max_queue, 9);
  std::remove(path.c_str());
  const absl::Status missing = ReadConfigFile(path, schema);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path));
  EXPECT_FALSE(ReadConfigFile(::testing::TempDir(), schema).ok());  // a folder
}

}  // namespace
}  // namespace runahead
