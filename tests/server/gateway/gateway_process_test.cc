#include "server/gateway/gateway_process.h"

#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

// Ends the process with 0 where nobody looks for deadlocks: Abseil ends it over locks that are taken in two orders.
void TakeLocksInTwoOrders() {
  GatewayOptions options;
  options.listen = "127.0.0.1:0";
  options.router = "127.0.0.1:1";  // that nobody calls
  const auto gateway = GatewayProcess::Start(options);
  if (!gateway.ok()) std::exit(1);
  absl::Mutex a, b;
  { absl::MutexLock first(&a), second(&b); }
  { absl::MutexLock first(&b), second(&a); }
  std::_Exit(0);
}

TEST(GatewayProcess, KeepsNoGraphOfTheLocksThatGrpcTakes) {
  ::testing::FLAGS_gtest_death_test_style =
      "threadsafe";  // a process of its own, in which no server has started before
  EXPECT_EXIT(TakeLocksInTwoOrders(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace runahead
