// The main of tests that use UCX; included by the test's one source file.
#pragma once

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/link/ucx/ucx_environment.h"

// UCX 1.13 leaks a few bytes when it cannot attach the shared memory of a peer that died.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libuct.so\nleak:libucp.so\n";
}

int main(int argc, char** argv) {
  runahead::EnsureUcxEnvironment(argv);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
