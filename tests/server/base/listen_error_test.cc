#include "server/base/listen_error.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// (A port in use: server_test and metrics_server_test.)
TEST(ListenError, SaysOptionAddressAndCause) {
  const absl::Status elsewhere = ListenError("listen", {"192.0.2.1", 0});  // an address for documents, nobody's own
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(elsewhere.message()), StartsWith("listen: cannot listen on 192.0.2.1:0: Cannot assign"));
  EXPECT_THAT(std::string(ListenError("metrics_listen", {"no-such-host.invalid", 1}).message()),
              StartsWith("metrics_listen: cannot listen on no-such-host.invalid:1: "));
}

}  // namespace
}  // namespace runahead
