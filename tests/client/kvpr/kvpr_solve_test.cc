// `runahead kvpr solve` as a program.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

struct Solved {
  int code = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

Solved RunSolved(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {RUNAHEAD_BINARY, "kvpr", "solve"});
  testing::TestProcess process(flags);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

// OPT-6.7B, batch 64, length 1,024 on an H100: 53 GB/s are 424 gigabits.
Solved SolveOpt(std::vector<std::string> more) {
  std::vector<std::string> flags = {"--hidden",    "4096", "--kv-dim", "4096", "--layers",      "32",
                                    "--batch",     "64",   "--length", "1024", "--dtype-bytes", "2",
                                    "--link-gbps", "424",  "--tflops", "700"};
  flags.insert(flags.end(), more.begin(), more.end());
  return RunSolved(flags);
}

TEST(KvprSolve, PrintsOneObjectWithJson) {
  const Solved solved = SolveOpt({"--objective", "pipelined", "--json"});
  ASSERT_EQ(solved.code, 0) << solved.err;
  EXPECT_EQ(solved.err, "");
  const auto json = solved.json();
  EXPECT_EQ(json["l"], 1024);  // min(s', 2 s' / (2 rho + 1)), rho 0.31
  EXPECT_NEAR(json["gain"].get<double>(), 2, 1e-9);
  const double layer_s = 64 * 1024 * 8192 / 53e9;
  EXPECT_NEAR(json["times"]["layer_s"].get<double>(), layer_s, 1e-12);
  EXPECT_NEAR(json["times"]["step_s"].get<double>(), 32 * layer_s, 1e-9);
  EXPECT_NEAR(json["times"]["streamed_s"].get<double>(), 2 * layer_s, 1e-9);
  EXPECT_EQ(json["tiers"]["x_tokens"], 0);
  EXPECT_EQ(json["tiers"]["window_tokens"], 0);
  EXPECT_EQ(json["lanes"]["recomputed"]["tokens"], 64 * 1024);
  EXPECT_EQ(json["lanes"]["recomputed"]["bytes"], 64 * 1024 * 8192);
  EXPECT_EQ(json["lanes"]["streamed"]["tokens"], 0);
  EXPECT_EQ(json["lanes"]["host"]["seconds"], 0);
  EXPECT_EQ(json["lanes"]["resident"]["tokens"], 0);
}

TEST(KvprSolve, ThePapersFormsSplitAtTheLengthOverOnePlusRho) {
  for (const char* objective : {"row", "column"}) {
    const auto json = SolveOpt({"--objective", objective, "--json"}).json();
    EXPECT_NEAR(json["l"].get<double>(), 1024 / (1 + 4096 * 53e9 / 700e12), 1.1) << objective;
  }
}

// row charges no X; a step has to bring it over, so MHA gains twice at most.
TEST(KvprSolve, SaysWhatIsAchievableBesideWhatTheObjectiveSays) {
  const auto row = SolveOpt({"--objective", "row", "--json"}).json();
  EXPECT_GT(row["gain"].get<double>(), 4);
  EXPECT_LE(row["achievable"]["gain"].get<double>(), 2);
  const double x_and_kv_s =
      (row["lanes"]["recomputed"]["bytes"].get<double>() + row["lanes"]["streamed"]["bytes"].get<double>()) / 53e9;
  EXPECT_NEAR(row["achievable"]["layer_s"].get<double>(), x_and_kv_s, 1e-9);
  EXPECT_NEAR(row["achievable"]["step_s"].get<double>(), 32 * x_and_kv_s, 1e-7);
  EXPECT_THAT(SolveOpt({"--objective", "row"}).out,
              HasSubstr("row leaves out what a step cannot; with this l decode takes"));

  const auto step = SolveOpt({"--json"}).json();
  EXPECT_EQ(step["achievable"]["gain"], step["gain"]);
  EXPECT_EQ(step["achievable"]["layer_s"], step["times"]["layer_s"]);
  EXPECT_THAT(SolveOpt({}).out, ::testing::Not(HasSubstr("leaves out")));
}

// 13B's shape, link-bound: 4,000 positions are no multiple of the tile.
TEST(KvprSolve, RoundsByTheEvaluatedTime) {
  const auto solve = [](const char* tflops) {
    return RunSolved({"--hidden", "5120", "--kv-dim", "5120", "--layers", "40", "--batch", "13", "--length", "4000",
                      "--dtype-bytes", "2", "--link-gbps", "256", "--tflops", tflops, "--json"})
        .json();
  };
  const auto bound = solve("700");
  EXPECT_EQ(bound["l"], 4000);
  EXPECT_EQ(bound["l_least"], 4000);
  EXPECT_EQ(bound["l_most"], 4000);
  const auto balanced = solve("250");  // the mean is no multiple; what each sequence has is
  EXPECT_EQ(balanced["l_least"].get<int64_t>() % 64, 0);
  EXPECT_EQ(balanced["l_most"].get<int64_t>(), balanced["l_least"].get<int64_t>() + 64);
  EXPECT_GT(balanced["l"], balanced["l_least"]);
}

TEST(KvprSolve, FindsTheThreeTiersOfTheExample) {
  const Solved solved = SolveOpt({"--budget-gib", "8", "--device-gbps", "26800", "--project-us", "120.2", "--json"});
  ASSERT_EQ(solved.code, 0) << solved.err;
  const auto json = solved.json();
  EXPECT_NEAR(json["gain"].get<double>(), 3.3, 0.05);
  EXPECT_NEAR(json["times"]["streamed_s"].get<double>() / json["times"]["window_s"].get<double>(), 4.0 / 3, 1e-9);
  EXPECT_EQ(json["tiers"]["x_tokens"], 512);
  EXPECT_EQ(json["tiers"]["bytes"], int64_t{8} << 30);
}

TEST(KvprSolve, GroupedHeadsNeedTheHostLane) {
  const std::vector<std::string> flags = {"--hidden", "4096",        "--kv-dim",     "1024", "--layers",         "32",
                                          "--batch",  "64",          "--length",     "8192", "--dtype-bytes",    "2",
                                          "--tflops", "700",         "--budget-gib", "4",    "--host-lane-gbps", "848",
                                          "--json",   "--link-gbps", "424"};
  const auto json = RunSolved(flags).json();
  EXPECT_EQ(json["lanes"]["streamed"]["tokens"].get<int64_t>() + json["lanes"]["host"]["tokens"].get<int64_t>() +
                json["lanes"]["resident"]["tokens"].get<int64_t>() +
                json["lanes"]["recomputed"]["tokens"].get<int64_t>(),
            64 * 8192);
  EXPECT_GT(json["lanes"]["host"]["tokens"], 64 * 4096);
  EXPECT_GT(json["gain"].get<double>(), 3);
}

TEST(KvprSolve, SaysItForPeople) {
  const Solved solved = SolveOpt({"--budget-gib", "8"});
  ASSERT_EQ(solved.code, 0);
  EXPECT_THAT(solved.out, HasSubstr("step, 64 sequences of 1024: l is "));
  EXPECT_THAT(solved.out, HasSubstr("X of the first 512: 8 GiB; with a window of KV alone 1.33 times as fast"));
  EXPECT_THAT(SolveOpt({}).out, ::testing::Not(HasSubstr("window of KV alone")));
}

TEST(KvprSolve, QuantisedKvLeavesNothingToRecompute) {
  EXPECT_EQ(SolveOpt({"--kv-bits", "4", "--json"}).json()["l"], 0);
  EXPECT_EQ(SolveOpt({"--kv-bytes", "0.5", "--json"}).json()["l"], 0);
  EXPECT_EQ(SolveOpt({"--kv-bits", "8", "--json"}).json()["l"], 1024) << "X is a little smaller";
  EXPECT_EQ(SolveOpt({"--kv-bits", "8", "--x-bytes", "2.125", "--json"}).json()["l"], 0) << "and no smaller in q16";
  EXPECT_GT(SolveOpt({"--x-bytes", "1.125", "--json"}).json()["gain"], SolveOpt({"--json"}).json()["gain"]);
  EXPECT_EQ(SolveOpt({"--kv-bits", "16", "--json"}).json()["l"], 1024);
  EXPECT_EQ(SolveOpt({"--x-tokens", "500", "--json"}).json()["l"], 500);
  EXPECT_EQ(SolveOpt({"--kv-bits", "4", "--x-tokens", "500", "--l-min", "200", "--json"}).json()["l"], 256);
}

TEST(KvprSolve, RefusesWhatCannotBeWithExitCode2) {
  const auto refused = [](std::vector<std::string> more, const char* text) {
    const Solved solved = SolveOpt(std::move(more));
    EXPECT_EQ(solved.code, 2) << text;
    EXPECT_EQ(solved.out, "");
    EXPECT_THAT(solved.err, HasSubstr(text));
  };
  refused({"--kv-bits", "5"}, "--kv-bits: kv_bits: 5 is none of 4, 8 and 16");
  refused({"--kv-bits", "4", "--kv-bytes", "1"}, "not both");
  refused({"--kv-bytes", "0"}, "--kv-bytes: 0 is not above 0");
  refused({"--x-bytes", "0"}, "--x-bytes: 0 is not above 0");
  refused({"--x-tokens", "1025"}, "--x-tokens: 1025 is more than --length, 1024");
  refused({"--x-tokens", "256", "--l-min", "512"}, "--l-min: 512 is beyond the 256 positions that X is stored for");
  refused({"--budget-gib", "1", "--staging-gib", "2"}, "2147483648 bytes or more work");
  refused({"--budget-gib", "-1"}, "--budget-gib: -1 is not between 0 and 1048576");
  refused({"--objective", "best"}, "'best' is none of row, column, pipelined, step");
  const Solved no_link = RunSolved({"--hidden", "1", "--kv-dim", "1", "--layers", "1", "--batch", "1", "--length", "1",
                                    "--dtype-bytes", "2", "--link-gbps", "0", "--tflops", "1"});
  EXPECT_EQ(no_link.code, 2);
  EXPECT_THAT(no_link.err, HasSubstr("--link-gbps: 0 is not above 0"));
  const Solved no_model = RunSolved({"--hidden", "0", "--kv-dim", "1", "--layers", "1", "--batch", "1", "--length", "1",
                                     "--dtype-bytes", "2", "--link-gbps", "1", "--tflops", "1"});
  EXPECT_THAT(no_model.err, HasSubstr("--hidden: 0 is out of range"));
  EXPECT_THAT(RunSolved({"--hidden", "1"}).err, HasSubstr("missing: --kv-dim D: Elements of a row of K"));
}

}  // namespace
}  // namespace runahead
