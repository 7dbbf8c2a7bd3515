// main of tests that need a GPU. Where every test was skipped, the exit code says so: a pass would hide it.
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as the worker's main does, before CUDA reads it
  testing::InitGoogleMock(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  constexpr int kSkipped = 77;  // as ctest is told
  const bool skipped = result == 0 && tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
  return skipped ? kSkipped : result;
}
