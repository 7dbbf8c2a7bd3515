// runahead-worker as a program, as far as it gets without a router.
#include <signal.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TestProcess;

std::vector<std::string> Worker(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {RUNAHEAD_WORKER, "--role", "both", "--threads", "1", "--model", model};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<std::string> DecodeWorker(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> args = {RUNAHEAD_WORKER, "--role", "decode", "--threads", "1", "--model", model};
  args.insert(args.end(), {"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--kv-memory", "16MiB"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(WorkerProcess, AutoTakesWhatIsFastestOnAnOlderCpu) {
  for (const char* isa : {"ONEDNN_MAX_CPU_ISA=AVX2", "ONEDNN_MAX_CPU_ISA=AVX512_CORE"}) {
    TestProcess worker(Worker("/dev/null"), {isa});
    EXPECT_EQ(worker.Wait(), 1) << "/dev/null is no model";
    EXPECT_THAT(worker.err(), HasSubstr("1 threads, f32, KV in f32; auto takes f32 because this CPU has neither"))
        << isa;
  }
}

// Of an older CPU, so that this machine's AMX is none.
TEST(WorkerProcess, SaysWhyAutoTookInt8AndByWhatKernels) {
  SyntheticModel quantised = SmallModel();
  quantised.SetWeightType(WeightType::kQ8_0);
  const std::string model = WriteSynthetic(quantised, "worker_process_auto");
  TestProcess worker(Worker(model, {"--prefill-memory", "128"}), {"ONEDNN_MAX_CPU_ISA=AVX2"});
  EXPECT_EQ(worker.Wait(), 1) << "128 bytes hold no token";
  EXPECT_THAT(worker.err(), HasSubstr("1 threads, int8 (avx2), KV in f16; auto takes int8 because most weights are "
                                      "quantised and this CPU has no AMX (dtype f32 multiplies exactly)"));
  EXPECT_THAT(worker.err(), Not(HasSubstr("fastest")));
}

TEST(WorkerProcess, RefusesInt8BeforeItWaitsForOthersWhereNothingIsQuantised) {
  const std::string folder = ::testing::TempDir() + "/worker_process_shares";
  std::filesystem::create_directory(folder);
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    SyntheticModel plain = SmallModel();
    plain.SetWeightType(type);
    const std::string model = WriteSynthetic(plain, "worker_process_plain");
    TestProcess worker(DecodeWorker(model, {"--dtype", "int8", "--shared-weights", folder}));
    EXPECT_EQ(worker.Wait(), 1);
    EXPECT_THAT(worker.err(), HasSubstr(absl::StrCat("dtype: int8 multiplies quantised weights, and the matrices of ",
                                                     model, " are ", BlockOf(type).name, ": give auto, f32 or bf16")));
    EXPECT_THAT(worker.err(), Not(HasSubstr("shared"))) << "it took a place for what it would not pack";
  }
}

TEST(WorkerProcess, WarnsOfMatricesThatInt8LeavesOut) {
  SyntheticModel mixed = SmallModel();
  mixed.SetWeightType(WeightType::kQ8_0);
  mixed.finer_type = WeightType::kF16;
  TestProcess worker(
      Worker(WriteSynthetic(mixed, "worker_process_mixed"), {"--dtype", "int8", "--prefill-memory", "128"}));
  EXPECT_EQ(worker.Wait(), 1) << "128 bytes hold no token";
  EXPECT_THAT(worker.err(), HasSubstr("matrices are multiplied in f32, not in 8 bits"));
  EXPECT_THAT(worker.err(), HasSubstr("blk.0.attn_v.weight"));
}

TEST(WorkerProcess, RefusesADtypeThatAnOlderCpuLacks) {
  TestProcess worker(Worker("/dev/null", {"--dtype", "bf16"}), {"ONEDNN_MAX_CPU_ISA=AVX2"});
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.err(), HasSubstr("bf16 needs AVX-512, and this CPU has avx2: use f32"));
}

TEST(WorkerProcess, SaysWhatIsNoAddressBeforeItLoads) {
  TestProcess worker(Worker("/dev/null", {"--link-host", "nowhere.invalid"}));
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.err(), HasSubstr("link_host: \"nowhere.invalid\" is no address of this host"));
}

TEST(WorkerProcess, RefusesPrefillMemoryForLessThanAToken) {
  const std::string model = WriteSynthetic(SmallModel(), "worker_process");
  TestProcess worker(Worker(model, {"--prefill-memory", "128"}));
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.err(), HasSubstr("prefill_memory: does not hold a single token"));
}

TEST(WorkerProcess, StreamsWeightsOverALinkOnly) {
  TestProcess worker(DecodeWorker("/dev/null", {"--device", "cpu", "--decode-schedule", "throughput"}));
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.err(), HasSubstr("decode_schedule: throughput brings weights over a link"));
}

TEST(WorkerProcess, StreamsWeightsThatTheDeviceHasNoRoomFor) {
  const std::string model = WriteSynthetic(WideModel(), "worker_process_wide");
  const std::vector<std::string> small = {"--device", "cpu", "--emulated-link-gbps", "100", "--device-memory-budget",
                                          "32MiB"};
  for (const char* schedule : {"auto", "throughput", "latency"}) {
    std::vector<std::string> args = small;
    args.insert(args.end(), {"--decode-schedule", schedule});
    TestProcess worker(DecodeWorker(model, args));
    if (schedule == std::string("latency")) {
      EXPECT_EQ(worker.Wait(), 1) << worker.err();
      EXPECT_THAT(worker.err(), HasSubstr("33554432"));
      continue;
    }
    ASSERT_TRUE(worker.ReadErrUntil("serving on")) << worker.err();
    EXPECT_THAT(worker.err(), HasSubstr("in host memory, as the weights are"));
    worker.Signal(SIGTERM);
    EXPECT_EQ(worker.Wait(), 0);
  }
}

// What the options alone cannot show: they do not go with this model or this device. Each answer names the option and
// what would work.
TEST(WorkerProcess, RefusesOptionsOfKvprThatModelOrDeviceCannotHave) {
  const std::string model = WriteSynthetic(SmallModel(), "worker_process_kvpr");
  SyntheticModel odd_model = SmallModel();
  odd_model.kv_heads = 1;
  const std::string odd = WriteSynthetic(odd_model, "worker_process_odd");
  const std::string link = "--emulated-link-gbps=100";
  struct Bad {
    std::string model;
    std::vector<std::string> options;
    std::vector<std::string> said;
  };
  const Bad bad[] = {
      {model,
       {link, "--kv-device-budget", "64KiB"},
       {"kv_device_budget: KV passes through the device in chunks of 256 tokens", "bytes at least", "65536 are allowed",
        "allow more"}},
      {odd, {link, "--kv-bits", "8"}, {"kv_bits: K of a token has 16 values", "groups of 32", "only 16 works"}},
      {model, {link, "--static-window", "64"}, {"static_window: is for devices", "has a link", "leave it out"}},
      {model, {"--emulated-link-gbps=-1"}, {"emulated-link-gbps: -1 is out of range", "a number from 0"}},
      {model, {"--kv-device-budget", "64MiB"}, {"kv_device_budget: ", "emulate a link with emulated_link_gbps"}},
      {model, {"--recompute", "64"}, {"recompute: ", "emulate a link with emulated_link_gbps"}},
      {model, {"--emulated-host-gbps", "2"}, {"emulated_host_gbps: give emulated_link_gbps"}},
  };
  for (const Bad& each : bad) {
    std::vector<std::string> options = {"--device", "cpu"};
    options.insert(options.end(), each.options.begin(), each.options.end());
    TestProcess worker(DecodeWorker(each.model, options));
    EXPECT_NE(worker.Wait(), 0) << each.said[0];
    for (const std::string& words : each.said) EXPECT_THAT(worker.err(), HasSubstr(words));
  }
}

TEST(WorkerProcess, EndsWhileItLoadsWhenToldTo) {
  const char* const model = std::getenv("RUNAHEAD_TEST_MODEL");
  if (model == nullptr)
    GTEST_SKIP() << "RUNAHEAD_TEST_MODEL names no model, and others load too fast; tests/run sets it";
  for (const int signal : {SIGTERM, SIGINT}) {
    TestProcess worker(Worker(model));
    ASSERT_TRUE(worker.ReadErrUntil(": 10%")) << worker.err();
    worker.Signal(signal);
    EXPECT_EQ(worker.Wait(), 0);
    EXPECT_THAT(worker.err(), Not(HasSubstr("100%"))) << "it went on loading";
  }
}

}  // namespace
}  // namespace runahead
