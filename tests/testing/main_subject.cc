// Tests that do what main_test.py wants to see.
#include <gtest/gtest.h>

namespace {

TEST(Subject, Passes) {}
TEST(Subject, Fails) {
  FAIL() << "as it is meant to";
}
TEST(Subject, Skips) {
  GTEST_SKIP() << "as it is meant to";
}

}  // namespace
