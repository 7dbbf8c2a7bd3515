// What binaries of tests that use UCX do first, and a leak that is not ours.
#include "tests/testing/main.h"
#include "worker/link/ucx/ucx_environment.h"

// UCX 1.13 leaks a few bytes when it cannot attach the shared memory of a peer that died.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libuct.so\nleak:libucp.so\n";
}

namespace runahead {

void PrepareTests(char** argv) {
  EnsureUcxEnvironment(argv);
}

}  // namespace runahead
