#include "client/plan/cost_file.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/plan/fit_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CostFileTest : public ::testing::Test {
 protected:
  ~CostFileTest() override { std::remove(path_.c_str()); }

  const std::string& Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  std::string CostError(const std::string& text) { return ErrorOf(ReadCostFile(Write(text)).status()); }
  std::string FitError(const std::string& text) { return ErrorOf(ReadFitFile(Write(text)).status()); }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "cost_file_test.", getpid());

 private:
  // With the path as "FILE".
  std::string ErrorOf(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    std::string text(status.message());
    if (const size_t at = text.find(path_); at != std::string::npos) text.replace(at, path_.size(), "FILE");
    return text;
  }
};

constexpr char kShort[] =
    "layers: 4\nkv_bytes_per_token: 8192\nlinear_s_per_token: 2e-5\nattention_s_per_token_pair: 3e-9\n";

TEST_F(CostFileTest, ReadsEveryField) {
  const auto model = ReadCostFile(Write(absl::StrCat(kShort,
                                                     "fixed_s: 0.01\ncausal_skip: true\nfloor_s: 0.1\nlogits_s: 0.002\n"
                                                     "qkv_share: 0.3\nreceive_ahead_layers: 2\nlink_latency_s: 5e-5\n"
                                                     "link_gbps: 80\nworker_factors: [1, 1.5, 3]\n"
                                                     "together_factor: 1.2\n")));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->layers, 4);
  EXPECT_EQ(model->kv_bytes_per_token, 8192);
  EXPECT_EQ(model->linear_s_per_token, 2e-5);
  EXPECT_EQ(model->attention_s_per_token_pair, 3e-9);
  EXPECT_EQ(model->fixed_s, 0.01);
  EXPECT_TRUE(model->causal_skip);
  EXPECT_EQ(model->floor_s, 0.1);
  EXPECT_EQ(model->logits_s, 0.002);
  EXPECT_EQ(model->qkv_share, 0.3);
  EXPECT_EQ(model->receive_ahead_layers, 2);
  EXPECT_THAT(model->worker_factors, ElementsAre(1, 1.5, 3));
  EXPECT_EQ(model->together_factor, 1.2);
  ASSERT_THAT(model->links, SizeIs(1));
  EXPECT_EQ(model->links[0].latency_s, 5e-5);
  EXPECT_EQ(model->links[0].bytes_per_s, 10e9);
}

TEST_F(CostFileTest, LeavesTheRestAsTheModelHasIt) {
  const auto model = ReadCostFile(Write(kShort));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->fixed_s, 0);
  EXPECT_FALSE(model->causal_skip);
  EXPECT_EQ(model->qkv_share, CostModel().qkv_share);
  EXPECT_THAT(model->worker_factors, IsEmpty());
  EXPECT_TRUE(std::isinf(model->links[0].bytes_per_s));
}

// How our workers receive is what a file means; one of the paper's schedule says so.
TEST_F(CostFileTest, IsOfOurWorkersUnlessItSaysOtherwise) {
  EXPECT_EQ(ReadCostFile(Write(kShort))->receive_ahead_layers, kRunaheadReceiveAhead);
  EXPECT_EQ(ReadCostFile(Write(absl::StrCat(kShort, "receive_ahead_layers: 1\n")))->receive_ahead_layers, 1);
  EXPECT_EQ(ReadFitFile(Write("1024 0.10\n"))->model.receive_ahead_layers, kRunaheadReceiveAhead);
  EXPECT_EQ(ReadFitFile(Write("receive_ahead_layers: 1\nruns: [[1024, 0.1]]\n"))->model.receive_ahead_layers, 1);
}

TEST_F(CostFileTest, LinksOfOneHostMayShareABus) {
  const auto model = ReadCostFile(
      Write(absl::StrCat(kShort, "link_gbps: 100\nbuses:\n- {links: [0, 1], gbps: 128}\n- {links: [3], gbps: 8}\n")));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_THAT(model->buses, SizeIs(2));
  EXPECT_THAT(model->buses[0].links, ElementsAre(0, 1));
  EXPECT_EQ(model->buses[0].bytes_per_s, 16e9);
  EXPECT_THAT(model->buses[1].links, ElementsAre(3));
  EXPECT_THAT(ReadCostFile(Write(absl::StrCat(kShort, "buses: [{gbps: 8}]\n")))->buses[0].links, IsEmpty());
  EXPECT_THAT(CostError(absl::StrCat(kShort, "buses: [{links: [0]}]\n")), HasSubstr("buses[0].gbps is missing"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "buses: [{links: [15], gbps: 1}]\n")),
              HasSubstr("FILE:5: buses[0].links: [0]: 15 is out of range"));
}

TEST_F(CostFileTest, LinksMayDiffer) {
  const auto model = ReadCostFile(Write(absl::StrCat(kShort, "links:\n- {gbps: 8, latency_s: 1e-5}\n- {gbps: 16}\n")));
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_THAT(model->links, SizeIs(2));
  EXPECT_EQ(model->links[0].latency_s, 1e-5);
  EXPECT_EQ(model->links[1].bytes_per_s, 2e9);
}

TEST_F(CostFileTest, IsReadBackAsItWasPrinted) {
  CostModel model;
  model.layers = 30;
  model.kv_bytes_per_token = 23040;
  model.fixed_s = 0.0123456;
  model.linear_s_per_token = 1.23456e-3;
  model.attention_s_per_token_pair = 7.5e-8;
  model.causal_skip = true;
  model.receive_ahead_layers = 2;
  model.floor_s = 0.25;
  model.worker_factors = {1, 2.4, 0.5};
  model.together_factor = 1.125;
  model.window_layers = 25;
  model.window = 1234567;
  const auto read_back = [&model] {
    const auto text = PrintCostFile(model, {"first\nline: 1", "second"});
    EXPECT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, ::testing::StartsWith("# first?line: 1\n# second\nlayers: 30\n"));
    return ParseCostFile(*text, "printed").value();
  };
  model.links = {{0, 1e9}, {2e-3, std::numeric_limits<double>::infinity()}};
  const CostModel several = read_back();
  EXPECT_EQ(several.layers, 30);
  EXPECT_EQ(several.kv_bytes_per_token, 23040);
  EXPECT_EQ(several.fixed_s, 0.0123456);
  EXPECT_EQ(several.linear_s_per_token, 1.23456e-3);
  EXPECT_EQ(several.attention_s_per_token_pair, 7.5e-8);
  EXPECT_TRUE(several.causal_skip);
  EXPECT_EQ(several.receive_ahead_layers, 2);
  EXPECT_EQ(several.floor_s, 0.25);
  EXPECT_THAT(several.worker_factors, ElementsAre(1, 2.4, 0.5));
  EXPECT_EQ(several.together_factor, 1.125);
  EXPECT_EQ(several.window_layers, 25);
  EXPECT_EQ(several.window, 1234567);
  ASSERT_THAT(several.links, SizeIs(2));
  EXPECT_EQ(several.links[0].bytes_per_s, 1e9);
  EXPECT_EQ(several.links[1].latency_s, 2e-3);
  EXPECT_TRUE(std::isinf(several.links[1].bytes_per_s));

  model.buses = {{{1}, 2e9}};
  ASSERT_THAT(read_back().buses, SizeIs(1));
  EXPECT_THAT(read_back().buses[0].links, ElementsAre(1));
  EXPECT_EQ(read_back().buses[0].bytes_per_s, 2e9);

  model.links = {{1e-3, 1e7}};
  model.buses = {{{}, 1e9}};
  EXPECT_THAT(read_back().buses[0].links, IsEmpty());
  const CostModel alike = read_back();
  ASSERT_THAT(alike.links, SizeIs(1));
  EXPECT_EQ(alike.links[0].latency_s, 1e-3);
  EXPECT_EQ(alike.links[0].bytes_per_s, 1e7);
  model.links = {{}};
  EXPECT_TRUE(std::isinf(read_back().links[0].bytes_per_s));
  model.fixed_s = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(PrintCostFile(model, {}).status()));
}

TEST_F(CostFileTest, RefusesAndSaysWhere) {
  EXPECT_EQ(CostError(""), "FILE: layers is missing; allowed: a whole number from 1 to 10000");
  EXPECT_THAT(CostError(absl::StrCat(kShort, "layer: 3\n")),
              HasSubstr("FILE:5: layer: unknown key, did you mean 'layers'?"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "fixed_s: -1\n")),
              HasSubstr("FILE:5: fixed_s: -1 is out of range; allowed: a number from 0 to"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "fixed_s: .nan\n")), HasSubstr("'.nan' is not a finite number"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "fixed_s: nan\n")), HasSubstr("'nan' is not a finite number"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "fixed_s: 1e300\n")), HasSubstr("1e300 is out of range"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "fixed_s: 1\nfixed_s: 2\n")),
              HasSubstr("FILE:6: fixed_s: given a second"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "causal_skip: yes\n")), HasSubstr("allowed: true or false"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "worker_factors: [1, 0]\n")),
              HasSubstr("FILE:5: worker_factors: [1]: 0 is out of range; allowed: a list of up to 16 items, each a"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "worker_factors: 2\n")), HasSubstr("worker_factors: is not a list"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "window: -1\n")), HasSubstr("FILE:5: window: -1 is out of range"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "link_gbps: 0\n")), HasSubstr("link_gbps: 0 is out of range"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "link_gbps: 1\nlinks: [{gbps: 2}]\n")), HasSubstr("one form of the two"));
  EXPECT_THAT(CostError(absl::StrCat(kShort, "links: [{gbps: 0}]\n")), HasSubstr("FILE:5: links[0].gbps: 0 is out of"));
  EXPECT_THAT(CostError("layers: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(CostError("runs\n"), HasSubstr("FILE:1: not a map"));
  EXPECT_EQ(ReadCostFile(path_ + ".none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadCostFile(::testing::TempDir()).ok());  // a folder
}

TEST_F(CostFileTest, ReadsPairsInEveryForm) {
  for (const char* text :
       {"1024 0.10\n2048 0.24\n", "tokens,seconds\r\n1024,0.10\r\n2048,0.24\r\n",
        "# measured today\n\n1024\t0.10  # the first\n 2048 ; 0.24", "- [1024, 0.10]\n- [2048, 0.24]\n",
        "[[1024, 0.10], [2048, 0.24]]", "runs:\n- [1024, 0.10]\n- {tokens: 2048, seconds: 0.24}\n",
        "{\"runs\": [{\"tokens\": 1024, \"seconds\": 0.10}, {\"tokens\": 2048, \"seconds\": 0.24}]}"}) {
    const auto file = ReadFitFile(Write(text));
    ASSERT_TRUE(file.ok()) << text << file.status();
    ASSERT_THAT(file->runs, SizeIs(2)) << text;
    EXPECT_THAT(file->runs[0].parts, ElementsAre(1024)) << text;
    EXPECT_EQ(file->runs[0].seconds, 0.10) << text;
    EXPECT_EQ(file->runs[1].seconds, 0.24) << text;
    EXPECT_EQ(file->runs[1].schedule, Schedule::kKvr) << text;
  }
}

TEST_F(CostFileTest, ATextThatNamesNoModelIsTakenForThePapersOne) {
  const auto file = ReadFitFile(Write("1024 0.10\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->model.layers, 32);
  EXPECT_EQ(file->model.kv_bytes_per_token, 524288);
  EXPECT_EQ(file->assumed,
            "layers: 32 and kv_bytes_per_token: 524288 are taken from Llama-7B in 16 bits, as the file does not say");
  EXPECT_TRUE(file->find_floor);
  EXPECT_FALSE(file->find_latency) << "no run has a link";
  const auto named = ReadFitFile(Write("layers: 30\nkv_bytes_per_token: 0\nfloor_s: 0\nruns: [[1024, 0.1]]\n"));
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->assumed, "");
  EXPECT_FALSE(named->find_floor);
}

TEST_F(CostFileTest, ReadsRunsOfChains) {
  const auto file = ReadFitFile(Write(
      "layers: 32\nkv_bytes_per_token: 524288\nlink_gbps: 2400\nruns:\n"
      "- {tokens: 1025, seconds: 0.2, schedule: tsp, width: 4}\n- {tokens: 1024, seconds: 0.2, parts: [700, 324]}\n"
      "- {tokens: 9, seconds: 0.2, schedule: kvr-even, width: 2, link_gbps: 80}\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->runs[0].schedule, Schedule::kTsp);
  EXPECT_THAT(file->runs[0].parts, ElementsAre(257, 256, 256, 256));
  EXPECT_EQ(file->runs[0].link_bytes_per_s, 0);
  EXPECT_EQ(file->model.links[0].bytes_per_s, 300e9);
  EXPECT_THAT(file->runs[1].parts, ElementsAre(700, 324));
  EXPECT_THAT(file->runs[2].parts, ElementsAre(5, 4));
  EXPECT_EQ(file->runs[2].link_bytes_per_s, 10e9);
  EXPECT_TRUE(file->find_latency);
}

TEST_F(CostFileTest, RefusesRunsAndSaysWhich) {
  EXPECT_EQ(FitError("1024 0.1\n2048\n"), "FILE:2: holds 1 word; allowed: tokens and seconds, as in 4096 0.65");
  EXPECT_THAT(FitError("1024 0.1\n20k 0.2\n"), HasSubstr("FILE:2: runs[1].tokens: '20k' is not a whole number"));
  EXPECT_THAT(FitError("1024 0.1\n2048 -1\n"), HasSubstr("FILE:2: runs[1].seconds: -1 is out of range"));
  EXPECT_THAT(FitError("seconds tokens\n0.1 1024\n"), HasSubstr("FILE:1: runs[0].tokens: 'seconds' is not a whole"));
  EXPECT_THAT(FitError("0 0.1\n"), HasSubstr("runs[0].tokens: 0 is out of range"));
  EXPECT_THAT(FitError("99999999999 0.1\n"), HasSubstr("is out of range"));
  EXPECT_THAT(FitError("1024 nan\n"), HasSubstr("'nan' is not a finite number"));
  EXPECT_THAT(FitError(""), HasSubstr("FILE: runs is missing"));
  EXPECT_THAT(FitError("runs: []\n"), HasSubstr("runs: has 0 items, too few"));
  EXPECT_THAT(FitError("fixed_s: 1\nruns: [[1, 1]]\n"), HasSubstr("FILE:1: fixed_s: unknown key"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, width: 17}]"), HasSubstr("runs[0].width: 17 is out of range"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, width: 11, schedule: tsp}]"),
              HasSubstr("FILE: runs[0]: width: 11 is more than one worker a token"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, width: 2}]"), HasSubstr("runs[0]: parts: missing"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, parts: [4, 5]}]"),
              HasSubstr("they add up to 9, not to the 10"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, parts: [4, 6], width: 3}]"), HasSubstr("there are 2 parts"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, parts: [4, x]}]"), HasSubstr("parts: [1]: 'x' is not a whole"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, schedule: ring}]"), HasSubstr("'ring' is unknown"));
  EXPECT_THAT(FitError("runs: [{tokens: 10, seconds: 1, schedule: single, width: 2}]"), HasSubstr("takes one worker"));
  EXPECT_THAT(FitError("worker_factors: [1]\nruns: [{tokens: 10, seconds: 1, schedule: tsp, width: 2}]"),
              HasSubstr("FILE: worker_factors: 1 given, a chain of 2 workers needs as many"));
}

// Timings of a known model give it back; no constant is added where three do.
TEST_F(CostFileTest, FitsThreeConstantsWhereTheyDo) {
  std::string text;
  for (const double tokens : {512.0, 1024.0, 2048.0, 4096.0, 8192.0}) {
    absl::StrAppend(&text, tokens, " ", 0.01 + 7e-5 * tokens + 2e-8 * tokens * tokens, "\n");
  }
  const auto fit = FitOf(*ReadFitFile(Write(text)));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.fixed_s, 0.01, 1e-5);
  EXPECT_NEAR(fit->model.linear_s_per_token, 7e-5, 1e-8);
  EXPECT_NEAR(fit->model.attention_s_per_token_pair, 2e-8, 1e-12);
  EXPECT_EQ(fit->model.floor_s, 0);
  EXPECT_FALSE(fit->poor());
}

TEST_F(CostFileTest, FitsAFloorWhereShortPromptsLieOnOne) {
  std::string text;
  for (const double tokens : {64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0}) {
    absl::StrAppend(&text, tokens, " ", std::max(0.1, 7e-5 * tokens + 2e-8 * tokens * tokens), "\n");
  }
  const auto fit = FitOf(*ReadFitFile(Write(text)));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.floor_s, 0.1, 1e-4);
  EXPECT_NEAR(fit->model.linear_s_per_token, 7e-5, 1e-7);
  EXPECT_FALSE(fit->poor());
}

TEST_F(CostFileTest, AFitOfRubbishIsPoor) {
  const auto fit = FitOf(*ReadFitFile(Write("1024 1\n2048 0.2\n4096 3\n8192 0.1\n16384 9\n")));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_TRUE(fit->poor());
}

}  // namespace
}  // namespace runahead
