// What `device: auto|cpu|cuda` opens. ctest runs it with drivers of the tests' own besides (tests/kernels/cuda).
#include "worker/device_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/int8/product.h"
#include "kernels/cuda/loader.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

WorkerOptions Options(const std::string& device) {
  WorkerOptions options;
  options.device = device;
  options.threads = 1;
  return options;
}

// Why this machine has no GPU for us; OK where it has.
absl::Status GpuProblem() {
  if (absl::Status driver = ProbeGpu(); !driver.ok()) return driver;
  const auto plugin = OpenCudaPlugin();
  return plugin.ok() ? (*plugin)->count().status() : plugin.status();
}

// The log of `open`.
template <typename Open>
std::string LogOf(const Open& open) {
  testing::internal::CaptureStderr();
  open();
  return testing::internal::GetCapturedStderr();
}

TEST(DeviceFactory, OpensTheCpuWhereItIsAskedFor) {
  const auto opened = OpenDevice(Options("cpu"), {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->device->name(), "cpu");
  EXPECT_EQ(opened->peer_comms, nullptr);
}

TEST(DeviceFactory, AutoTakesTheCpuAndSaysWhy) {
  const absl::Status problem = GpuProblem();
  if (problem.ok()) GTEST_SKIP() << "auto takes this machine's GPU";
  std::string name;
  const std::string log = LogOf([&name] {
    const auto opened = OpenDevice(Options("auto"), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    name = opened->device->name();
  });
  EXPECT_EQ(name, "cpu");
  EXPECT_THAT(log, HasSubstr("auto takes the CPU"));
  EXPECT_THAT(log, HasSubstr(std::string(problem.message())));
}

TEST(DeviceFactory, CudaThatIsNotThereIsAnErrorThatNamesTheOption) {
  if (GpuProblem().ok()) GTEST_SKIP() << "there is a GPU";
  const absl::Status status = OpenDevice(Options("cuda"), {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("device:"));
}

TEST(DeviceFactory, PacedCopiesAreTheCpusOnly) {
  WorkerOptions options = Options("auto");
  options.emulated_link_gbps = 1;
  const std::string log = LogOf([&options] { EXPECT_EQ(OpenDevice(options, {})->device->name(), "cpu"); });
  EXPECT_THAT(log, HasSubstr("emulated_link_gbps"));
  options.device = "cuda";
  EXPECT_THAT(std::string(CheckWorkerOptions(options).message()), HasSubstr("emulated_link_gbps:"));
}

TEST(DeviceFactory, TheCpuHasNoF16AndKeepsToItsBudget) {
  WorkerOptions options = Options("cpu");
  options.dtype = "f16";
  const absl::Status status = OpenDevice(options, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtype:"));
  options.dtype = "f32";
  options.device_memory_budget = 1 << 20;
  const auto opened = OpenDevice(options, {});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->device->Allocate(2 << 20, MemoryKind::kDevice).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(DeviceFactory, QuantisedWeightsAreMultipliedInInt8WhereAskedFor) {
  WorkerOptions options = Options("cpu");
  options.dtype = "int8";
  std::string numerics;
  const std::string log =
      LogOf([&] { numerics = OpenDevice(options, {.mostly_quantised = true})->device->numerics(); });
  EXPECT_EQ(numerics, "int8");
  EXPECT_THAT(log, HasSubstr(absl::StrCat("int8 (", FastestInt8Kernels().name, "), KV in f16")));
  EXPECT_THAT(log, Not(HasSubstr("auto takes")));
  options.dtype = "f32";
  EXPECT_EQ(OpenDevice(options, {.mostly_quantised = true})->device->numerics(), "f32");
}

// On whatever CPU this is: what it has decides, and the line says nothing else.
TEST(DeviceFactory, AutoSaysWhatItTookAndWhy) {
  for (const bool quantised : {true, false}) {
    for (const char* kv : {"auto", "f32"}) {
      WorkerOptions options = Options("cpu");
      options.kv_dtype = kv;
      std::string numerics, kv_dtype;
      const std::string log = LogOf([&] {
        const auto opened = *OpenDevice(options, {.mostly_quantised = quantised});
        numerics = opened.device->numerics();
        kv_dtype = DTypeName(opened.device->kv_dtype());
      });
      EXPECT_EQ(numerics == "int8", quantised && DetectCpuIsa() != CpuIsa::kAmx);
      EXPECT_THAT(log, HasSubstr(absl::StrCat("KV in ", kv_dtype, "; auto takes ", numerics, " because ")));
      EXPECT_THAT(log, Not(HasSubstr("fastest")));
    }
  }
}

TEST(DeviceFactory, RefusesInt8WhereTheFileHasNothingForIt) {
  WorkerOptions options = Options("cpu");
  options.dtype = "int8";
  const ModelFacts plain{.takes_int8 = absl::InvalidArgumentError("int8 is not for this")};
  const absl::Status status = OpenDevice(options, plain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "dtype: int8 is not for this");
  options.dtype = "auto";
  EXPECT_TRUE(OpenDevice(options, plain).ok());
}

}  // namespace
}  // namespace runahead
