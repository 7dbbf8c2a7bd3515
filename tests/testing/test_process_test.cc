#include "tests/testing/test_process.h"

#include <csignal>
#include <cstdlib>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace runahead::testing {
namespace {

// Was: both waited for ever, and what the program had said was lost.
TEST(TestProcess, AProgramThatIsSilentForTooLongEndsTheWait) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // the variable is read once in a process
  EXPECT_EXIT(
      {
        setenv("RUNAHEAD_TEST_PATIENCE", "0.05", 1);  // of 100 s
        TestProcess process({"/bin/sh", "-c", "echo it begins; exec sleep 1000"});
        int code = 0;
        EXPECT_NONFATAL_FAILURE(code = process.Wait(), "its output so far:\nit begins");
        EXPECT_EQ(code, 128 + SIGKILL);
        std::exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(TestProcess, ReadsUntilWhatItSaysIsThere) {
  TestProcess process({"/bin/sh", "-c", "echo one; echo two >&2; exit 3"});
  EXPECT_TRUE(process.ReadOutUntil("one\n"));
  EXPECT_TRUE(process.ReadErrUntil("two\n"));
  EXPECT_FALSE(process.ReadOutUntil("three"));
  EXPECT_EQ(process.Wait(), 3);
}

}  // namespace
}  // namespace runahead::testing
