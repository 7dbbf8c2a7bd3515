// Decode over a link in every combination of what is computed in, what KV is kept in, in how many bits, what is
// recomputed, and what attention sees, through the whole service: X is kept and recomputed from, or the worker says at
// start why not; and the tokens are those of a cluster without a link. Nothing is refused when a request comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/row_form.h"
#include "kernels/cpu/cpu_device_options.h"
#include "kernels/cpu/cpu_isa.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// Every head has K and V of its own (kMha); all heads share one (kMqa); attention sees a window only (kWindow).
enum class Shape { kMha, kMqa, kWindow };

constexpr int kPrompt = 1300, kTokens = 8;
constexpr int64_t kLayers = 2, kHidden = 64;
constexpr int kPrompts = 3;

// Quantised matrices, so that `auto` takes int8.
SyntheticModel ModelOf(Shape shape) {
  SyntheticModel model;
  model.layers = kLayers;
  model.hidden = kHidden;
  model.kv_heads = shape == Shape::kMqa ? 1 : model.heads;
  if (shape == Shape::kWindow) model.window = 600;
  model.SetWeightType(WeightType::kQ8_0);
  return model;
}

const std::string& PathOf(Shape shape) {
  static std::map<Shape, std::string> paths;
  std::string& path = paths[shape];
  if (path.empty()) path = WriteSynthetic(ModelOf(shape), absl::StrCat("kvpr_table_", static_cast<int>(shape)));
  return path;
}

// What workers compute in and keep KV in: those of a cluster without a link, too.
struct Numerics {
  std::string dtype = "auto", kv_dtype = "auto", kv_bits = "16";
  std::vector<std::string> arguments() const {
    return {"--dtype", dtype, "--kv-dtype", kv_dtype, "--kv-bits", kv_bits};
  }
};

// Of X, in what `auto` takes here.
std::string FormInAuto() {
  CpuDeviceOptions options;
  EXPECT_TRUE(SetNumerics("auto", /*weights_are_quantised=*/true, options).ok());
  return options.int8 ? "q8" : std::string(DTypeName(options.compute_dtype));
}

struct Cell {
  const char* name;
  Numerics numerics;
  Shape shape = Shape::kMha;
  std::vector<std::string> more = {};
  const char* x = "auto";  // the form of X: what goes with `auto`; empty: nothing is recomputed, and the worker says so
  const char* arrives = "";  // the form in which it comes, where that is another

  bool Has(const char* option) const { return std::count(more.begin(), more.end(), option) > 0; }
  // How far logarithms of probabilities may be from those without a link: a rule of f32's kind, unless something is
  // rounded that can then fall to the other side.
  double apart() const {
    if (x == std::string("q4")) return 0.5;  // X's rounding beside KV's
    if (numerics.kv_bits == "4") return 0.2;
    const bool bf16 = numerics.dtype == "bf16" || (numerics.dtype == "auto" && FormInAuto() == "bf16");
    if (bf16 && *x != '\0') return 0.1;
    if (numerics.kv_bits == "8") return 0.02;
    return x == std::string("q16") ? 5e-3 : 1e-3;
  }
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.name;
}

std::vector<Answer> AskOver(v1::Inference::Stub& stub) {
  std::vector<Answer> answers;
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(kPrompt, 3 + prompt), kTokens));
    request.mutable_sampling()->set_logprobs(20);
    answers.push_back(GenerateOver(stub, request));
    EXPECT_TRUE(answers.back().status.ok()) << answers.back().status.error_message();
    EXPECT_EQ(answers.back().ids.size(), static_cast<size_t>(kTokens));
  }
  return answers;
}

std::vector<Answer> Ask(LocalCluster& cluster) {
  const std::vector<Answer> answers = AskOver(cluster.stub());
  cluster.ExpectAllFree();
  return answers;
}

// Of the same numerics, without a link.
const std::vector<Answer>& Reference(const Cell& cell) {
  static std::map<std::string, std::vector<Answer>> all;
  const std::vector<std::string> arguments = cell.numerics.arguments();
  const auto [at, is_new] = all.try_emplace(absl::StrCat(PathOf(cell.shape), absl::StrJoin(arguments, " ")));
  if (is_new) {
    LocalCluster cluster(PathOf(cell.shape), arguments);
    at->second = Ask(cluster);
  }
  return at->second;
}

// What the answer says of `id` in place of `token`; of one that is none of the twenty, what is said of the last.
double Said(const v1::TokenLogprobs& token, int32_t id) {
  for (const v1::TokenLogprob& each : token.top()) {
    if (each.id() == id) return each.logprob();
  }
  return token.top(token.top_size() - 1).logprob();
}

// As long as both go on from the same tokens.
void ExpectTokensOf(const std::vector<Answer>& reference, const std::vector<Answer>& answers, double apart) {
  double most = 0;
  int compared = 0;
  for (size_t prompt = 0; prompt < answers.size(); ++prompt) {
    const Answer &wanted = reference[prompt], &got = answers[prompt];
    ASSERT_EQ(wanted.logprobs.size(), got.logprobs.size());
    for (size_t k = 0; k < wanted.logprobs.size(); ++k) {
      const v1::TokenLogprobs& token = wanted.logprobs[k];
      for (int i = 0; i < 3; ++i) {
        most = std::max(most, std::abs(Said(got.logprobs[k], token.top(i).id()) - token.top(i).logprob()));
      }
      ++compared;
      if (got.ids[k] == wanted.ids[k]) continue;
      EXPECT_LE(token.top(0).logprob() - token.top(1).logprob(), 2 * apart)
          << "token " << k << " of prompt " << prompt << " is " << got.ids[k] << ", not " << wanted.ids[k];
      break;
    }
  }
  EXPECT_LE(most, apart);
  EXPECT_GT(compared, kPrompts * kTokens / 2);
  ::testing::Test::RecordProperty("apart", absl::StrCat(most));
}

// A worker with the model in which each head has K and V of its own.
std::unique_ptr<testing::ServingProcess> StartWorker(const std::string& role, const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      RUNAHEAD_WORKER, "--role", role,       "--name", role,          "--model", PathOf(Shape::kMha),
      "--threads",     "1",      "--device", "cpu",    "--kv-memory", "64MiB"};
  args.insert(args.end(), more.begin(), more.end());
  return std::make_unique<testing::ServingProcess>(args);
}

void ExpectRefusedAtStart(const std::vector<std::string>& args, const char* says) {
  SCOPED_TRACE(absl::StrJoin(args, " "));
  const auto worker = StartWorker("decode", args);
  EXPECT_EQ(worker->address, "");
  EXPECT_NE(worker->process.Wait(), 0);
  EXPECT_THAT(worker->process.err(), HasSubstr(says));
}

class KvprTable : public ::testing::TestWithParam<Cell> {
 protected:
  // So slow a link that what recomputation spares is worth it.
  static std::vector<std::string> Arguments(const Cell& cell) {
    std::vector<std::string> all = cell.numerics.arguments();
    all.insert(all.end(), {"--emulated-link-gbps", "0.1", "--kv-device-budget", "1MiB"});
    if (!cell.Has("--host-lane")) all.insert(all.end(), {"--host-lane", "off"});
    all.insert(all.end(), cell.more.begin(), cell.more.end());
    return all;
  }
  // By one prefill worker, or by two.
  static double HandedOffX(LocalCluster& cluster, const Cell& cell) {
    constexpr char kX[] = "runahead_handoff_bytes_total{kind=\"x\"}";
    return cluster.Metric("prefill-0", kX) + (cell.Has("--prefill") ? cluster.Metric("prefill-1", kX) : 0);
  }
  static double Recomputed(LocalCluster& cluster) {
    return cluster.Metric("decode-0", "runahead_kvpr_lane_tokens_total{lane=\"recomputed\"}");
  }
};

TEST_P(KvprTable, XIsRecomputedOrTheWorkerSaysWhyNotAndTheTokensAreThoseWithoutALink) {
  const Cell& cell = GetParam();
  // Not every CPU computes in bf16; then that is what a worker says.
  if (cell.numerics.dtype == "bf16" && !SupportsBf16(DetectCpuIsa())) {
    return ExpectRefusedAtStart(cell.numerics.arguments(), "compute dtype bf16 needs AVX-512");
  }
  LocalCluster cluster(PathOf(cell.shape), Arguments(cell));
  const std::string at_start = cluster.Log();
  ExpectTokensOf(Reference(cell), Ask(cluster), cell.apart());
  const std::string x = cell.x == std::string("auto") ? FormInAuto() : cell.x;
  if (x.empty()) {
    EXPECT_THAT(at_start, HasSubstr("nothing is recomputed"));
    EXPECT_EQ(HandedOffX(cluster, cell), 0);
    EXPECT_EQ(Recomputed(cluster), 0);
    return;
  }
  const int64_t kept = RowFormBytes(*ParseRowForm(x), kHidden);
  EXPECT_THAT(at_start,
              HasSubstr(absl::StrCat("X is kept beside KV: X of a token takes ", kept, " bytes a layer in ", x)));
  const std::string arrives = *cell.arrives == '\0'                 ? x
                              : cell.arrives == std::string("auto") ? FormInAuto()
                                                                    : cell.arrives;
  const int64_t row = RowFormBytes(*ParseRowForm(arrives), kHidden);
  const int64_t seen = cell.shape == Shape::kWindow ? ModelOf(cell.shape).window - 1 : kPrompt;
  // The worker may find that it gains too little for more than the first prompt.
  const double of_a_prompt = static_cast<double>(kLayers * seen * row),
               prompts = HandedOffX(cluster, cell) / of_a_prompt;
  EXPECT_GE(prompts, 1);
  EXPECT_LE(prompts, kPrompts);
  EXPECT_EQ(prompts, std::floor(prompts));
  EXPECT_GT(Recomputed(cluster), 0);
}

// Workers with options that `runahead up` does not pass on, in the numerics that `auto` takes.
class KvprTableProcesses : public ::testing::Test {
 protected:
  static std::vector<std::string> OverALink() {
    return {"--emulated-link-gbps", "0.1", "--kv-device-budget", "1MiB", "--host-lane", "off"};
  }
  // Of a worker's series, or -1.
  static double Metric(const testing::ServingProcess& worker, const std::string& series) {
    httplib::Client client("http://" + worker.metrics);
    const auto page = client.Get("/metrics");
    double value = -1;
    for (const absl::string_view line : absl::StrSplit(page ? page->body : "", '\n')) {
      if (!absl::StartsWith(line, series + " ")) continue;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(series.size() + 1), &value));
    }
    return value;
  }
  // `apart`: as Cell::apart; 0 is that of cells in `auto`.
  static void ExpectTokens(const std::vector<std::string>& workers, double apart = 0) {
    std::vector<std::string> args = {RUNAHEAD_ROUTER, "--model", PathOf(Shape::kMha)};
    for (const std::string& worker : workers) args.push_back("--workers=" + worker);
    testing::ServingProcess router(args);
    ASSERT_FALSE(router.address.empty()) << router.process.err();
    const auto stub = v1::Inference::NewStub(grpc::CreateChannel(router.address, grpc::InsecureChannelCredentials()));
    const Cell cell{"Auto", {}};
    ASSERT_TRUE(
        Eventually([&] { return GenerateOver(*stub, Uncached(RequestOf(SyntheticIds(5, 1), 2))).status.ok(); }));
    ExpectTokensOf(Reference(cell), AskOver(*stub), apart > 0 ? apart : cell.apart());
  }
  static constexpr char kX[] = "runahead_handoff_bytes_total{kind=\"x\"}";
  static constexpr char kRecomputed[] = "runahead_kvpr_lane_tokens_total{lane=\"recomputed\"}";
};

TEST_F(KvprTableProcesses, BetweenTheRolesOfOneProcessXIsCopied) {
  const auto both = StartWorker("both", OverALink());
  ASSERT_FALSE(both->address.empty()) << both->process.err();
  ExpectTokens({"role=both,address=" + both->address});
  EXPECT_GT(Metric(*both, kX), 0);
  EXPECT_GT(Metric(*both, kRecomputed), 0);
}

// The prompts' KV fits, and X beside it does not.
TEST_F(KvprTableProcesses, WhereXDoesNotFitPrefillMemoryKvComesAlone) {
  const auto prefill = StartWorker("prefill", {"--prefill-memory", "2200000"}),
             decode = StartWorker("decode", OverALink());
  ASSERT_FALSE(prefill->address.empty()) << prefill->process.err();
  ASSERT_FALSE(decode->address.empty()) << decode->process.err();
  ExpectTokens({"role=prefill,address=" + prefill->address, "role=decode,address=" + decode->address});
  const double of_the_short_prompt = 5 * kLayers * RowFormBytes(*ParseRowForm(FormInAuto()), kHidden);
  EXPECT_LE(Metric(*prefill, kX), of_the_short_prompt);
  EXPECT_EQ(Metric(*decode, kRecomputed), 0);
}

TEST_F(KvprTableProcesses, WhereAllKvFitsTheDeviceItStaysThereAndXNeverComes) {
  const auto prefill = StartWorker("prefill", {}), decode = StartWorker("decode", {"--emulated-link-gbps", "0.1"});
  ASSERT_FALSE(prefill->address.empty()) << prefill->process.err();
  ASSERT_FALSE(decode->address.empty()) << decode->process.err();
  EXPECT_TRUE(decode->process.ReadErrUntil("KV is kept on the device"));
  ExpectTokens({"role=prefill,address=" + prefill->address, "role=decode,address=" + decode->address});
  EXPECT_EQ(Metric(*prefill, kX), 0);
}

// Static windows are for devices without a link.
TEST_F(KvprTableProcesses, OverStaticWindowsTheTokensAreTheSame) {
  const auto prefill = StartWorker("prefill", {}), decode = StartWorker("decode", {"--static-window", "2048"});
  ASSERT_FALSE(prefill->address.empty()) << prefill->process.err();
  ASSERT_FALSE(decode->address.empty()) << decode->process.err();
  ExpectTokens({"role=prefill,address=" + prefill->address, "role=decode,address=" + decode->address});
  EXPECT_EQ(Metric(*prefill, kX), 0);
}

TEST_F(KvprTableProcesses, OverStaticWindowsOf8BitsTheTokensAreNear) {
  const auto prefill = StartWorker("prefill", {}),
             decode = StartWorker("decode", {"--static-window", "2048", "--static-window-bits", "8"});
  ASSERT_FALSE(prefill->address.empty()) << prefill->process.err();
  ASSERT_FALSE(decode->address.empty()) << decode->process.err();
  ExpectTokens({"role=prefill,address=" + prefill->address, "role=decode,address=" + decode->address}, 0.1);
  EXPECT_GE(Metric(*decode, "runahead_static_window_saturated_values_total"), 0);
}

// What no store can be, or no step, a worker says at start, naming the option.
TEST_F(KvprTableProcesses, WhatCannotBeIsRefusedAtStart) {
  ExpectRefusedAtStart({"--recompute", "128"}, "recompute: ");
  ExpectRefusedAtStart({"--emulated-link-gbps", "4", "--static-window", "512"}, "static_window: ");
  ExpectRefusedAtStart({"--static-window", "512", "--kv-bits", "8"}, "static_window: ");
  ExpectRefusedAtStart({"--emulated-link-gbps", "4", "--kv-device-budget", "1KiB"},
                       "kv_device_budget: KV passes through the device");
}

const Numerics kAuto = {}, kF32 = {"f32"}, kBf16 = {"bf16"}, kF32F16 = {"f32", "f16"}, kF32Bf16 = {"f32", "bf16"};

INSTANTIATE_TEST_SUITE_P(
    Cells, KvprTable,
    ::testing::Values(
        // What is computed in, and what KV is kept in.
        Cell{"Auto", kAuto}, Cell{"F32", kF32, Shape::kMha, {}, "f32"}, Cell{"Bf16", kBf16, Shape::kMha, {}, "bf16"},
        Cell{"F32WithKvInF16", kF32F16, Shape::kMha, {}, "q16"},
        Cell{"F32WithKvInBf16", kF32Bf16, Shape::kMha, {}, "q16"},
        Cell{"Bf16WithKvInF32", {"bf16", "f32"}, Shape::kMha, {}, "bf16"},
        Cell{"Bf16WithKvInF16", {"bf16", "f16"}, Shape::kMha, {}, "bf16"},
        Cell{"Int8WithKvInF32", {"int8", "f32"}, Shape::kMha, {}, "q8"},
        Cell{"Int8WithKvInF16", {"int8", "f16"}, Shape::kMha, {}, "q8"},
        Cell{"Int8WithKvInBf16", {"int8", "bf16"}, Shape::kMha, {}, "q8"},
        // KV quantised.
        Cell{"AutoIn8Bits", {"auto", "auto", "8"}, Shape::kMha, {}, "q8", "auto"},
        Cell{"AutoIn4Bits", {"auto", "auto", "4"}, Shape::kMha, {}, "q4", "auto"},
        Cell{"F32In8Bits", {"f32", "auto", "8"}, Shape::kMha, {}, "q8", "f32"},
        Cell{"F32In4Bits", {"f32", "auto", "4"}, Shape::kMha, {}, "q4", "f32"},
        Cell{"F32WithKvInF16In8Bits", {"f32", "f16", "8"}, Shape::kMha, {}, "q8", "q16"},
        Cell{"Bf16In8Bits", {"bf16", "auto", "8"}, Shape::kMha, {}, "q8", "bf16"},
        Cell{"Int8In4Bits", {"int8", "auto", "4"}, Shape::kMha, {}, "q4", "q8"},
        // X quantised because it is asked for, or not.
        Cell{"Bf16WithXIn8Bits", kBf16, Shape::kMha, {"--x-bits", "8"}, "q8", "bf16"},
        Cell{"AutoIn4BitsWithXAsItComes", {"auto", "auto", "4"}, Shape::kMha, {"--x-bits", "16"}, ""},
        // A number recomputes whether it pays or not.
        Cell{"FixedAutoIn4Bits", {"auto", "auto", "4"}, Shape::kMha, {"--recompute", "5000"}, "q4", "auto"},
        Cell{"FixedF32In8Bits", {"f32", "auto", "8"}, Shape::kMha, {"--recompute", "128", "--x-bits", "16"}, "f32"},
        Cell{"FixedF32WithKvInF16", kF32F16, Shape::kMha, {"--recompute", "5000"}, "q16"},
        Cell{"FixedAuto", kAuto, Shape::kMha, {"--recompute", "5000"}},
        Cell{"OffAuto", kAuto, Shape::kMha, {"--recompute", "off"}, ""},
        // Heads that share K and V, and windows.
        Cell{"MqaAuto", kAuto, Shape::kMqa, {}, ""}, Cell{"MqaFixedAuto", kAuto, Shape::kMqa, {"--recompute", "128"}},
        Cell{"WindowAuto", kAuto, Shape::kWindow, {}},
        Cell{"WindowF32WithKvInF16", kF32F16, Shape::kWindow, {"--recompute", "5000"}, "q16"},
        Cell{"WindowBf16", kBf16, Shape::kWindow, {}, "bf16"},
        // Ways of X, and of weights.
        Cell{"AutoThroughAChainOfTwo", kAuto, Shape::kMha, {"--prefill", "2"}},
        Cell{"AutoWithStreamedWeights", kAuto, Shape::kMha, {"--decode-schedule", "throughput"}},
        Cell{"AutoWithAHostLane", kAuto, Shape::kMha, {"--host-lane", "auto"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace runahead
