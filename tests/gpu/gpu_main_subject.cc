// Tests that do what gpu_main_test.py wants to see, on the driver of fake_driver.cc.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

void CallDriver(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  ASSERT_NE(driver, nullptr) << dlerror();
  const auto function = reinterpret_cast<void (*)()>(dlsym(driver, name));
  ASSERT_NE(function, nullptr);
  function();
}

// Torn down after each test, which no lost GPU survives.
class Subject : public testing::Test {
 public:
  static void TearDownTestSuite() {
    if (lost) std::abort();
  }
  static inline bool lost = false;
};

TEST_F(Subject, UsesTheGpu) {
  CallDriver("fake_cuda_use");
}
TEST_F(Subject, Fails) {
  FAIL() << "as it is meant to";
}
TEST_F(Subject, Skips) {
  GTEST_SKIP() << "as it is meant to";
}
TEST_F(Subject, LosesTheGpu) {
  CallDriver("fake_cuda_lose");
  lost = true;
}
TEST_F(Subject, ComesLater) {
  ASSERT_FALSE(lost);
}

class AnotherSubject : public testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    if (Subject::lost) std::abort();
  }
};
TEST_P(AnotherSubject, ComesLater) {}
INSTANTIATE_TEST_SUITE_P(Some, AnotherSubject, testing::Values(1, 2));

}  // namespace
