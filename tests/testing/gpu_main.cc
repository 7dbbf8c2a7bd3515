// main of tests that need a GPU. Exit codes beside gtest's own: 77 where every test was skipped, for a pass would hide
// it; 78 where a test left an error of CUDA behind that stays (an illegal address, a failed assertion on the device).
// Every call of this process gets that error from then on, so nothing that came after would say anything about itself:
// that test fails, and the rest is named as not run.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

constexpr int kSkipped = 77;  // as ctest is told
constexpr int kGpuLost = 78;  // as tests/gpu/steps.py is told

// Calls a function of the driver, whose codes are 0 for success.
template <typename... Args>
int Call(void* driver, const char* name, Args... args) {
  constexpr int kNotFound = 500;
  const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(driver, name));
  return function == nullptr ? kNotFound : function(args...);
}

// Waits for what `device` has been given; the code that it ends with. 0 where this process has not used it.
int ErrorOf(void* driver, int device) {
  unsigned flags = 0;
  int active = 0;
  if (const int code = Call(driver, "cuDevicePrimaryCtxGetState", device, &flags, &active); code != 0) return code;
  if (active == 0) return 0;
  void* context = nullptr;  // the one that CUDA's runtime uses
  if (const int code = Call(driver, "cuDevicePrimaryCtxRetain", &context, device); code != 0) return code;
  int code = Call(driver, "cuCtxPushCurrent_v2", context);
  if (code == 0) {
    code = Call(driver, "cuCtxSynchronize");
    Call(driver, "cuCtxPopCurrent_v2", &context);
  }
  Call(driver, "cuDevicePrimaryCtxRelease_v2", device);
  return code;
}

// The driver's code that all calls of this process get from now on; 0 where there is none.
int ErrorThatStays() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // only CUDA itself loads it
  if (driver == nullptr) return 0;
  int count = 0;
  switch (const int code = Call(driver, "cuDeviceGetCount", &count)) {
    case 0:
      break;
    case 3:    // not initialised
    case 34:   // a stub of a driver
    case 100:  // no device
      return 0;
    default:
      return code;
  }
  for (int device = 0; device < count; ++device) {
    if (const int code = ErrorOf(driver, device); code != 0) return code;
  }
  return 0;
}

class GpuWatch final : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo& test) override { begun_.insert(&test); }

  // Before gtest's own printer: listeners hear of ends in the reverse of their order.
  void OnTestEnd(const testing::TestInfo& test) override {
    const int code = ErrorThatStays();
    if (code == 0) return;
    ADD_FAILURE() << "the GPU is lost to this process: the driver's error " << code << " stays";
    testing::UnitTest& all = *testing::UnitTest::GetInstance();
    if (auto* const printer = all.listeners().default_result_printer()) printer->OnTestEnd(test);
    for (int s = 0; s < all.total_test_suite_count(); ++s) {
      const testing::TestSuite& suite = *all.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) {
        const testing::TestInfo& other = *suite.GetTestInfo(t);
        if (other.should_run() && begun_.count(&other) == 0) {
          std::printf("[ NOT RUN  ] %s.%s\n", suite.name(), other.name());
        }
      }
    }
    std::fflush(nullptr);
    _exit(kGpuLost);  // what would be destroyed now asks the GPU, too
  }

 private:
  std::set<const testing::TestInfo*> begun_;
};

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as the worker's main does, before CUDA reads it
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  tests.listeners().Append(new GpuWatch);  // gtest's from now on
  const int result = RUN_ALL_TESTS();
  const bool skipped = result == 0 && tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
  return skipped ? kSkipped : result;
}
