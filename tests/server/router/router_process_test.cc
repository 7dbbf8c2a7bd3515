#include "server/router/router_process.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "server/router/inference_service.h"
#include "server/rpc/transport_options.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

// Of the socket of this process that listens on the port: gRPC's connections inherit it. -1: there is none.
int UserTimeoutMs(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0, timeout_ms = -1;
    socklen_t size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address = {};
    size = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    // An IPv6 socket has its port in the same place.
    if (ntohs(address.sin_port) != port) continue;
    size = sizeof(timeout_ms);
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size) == 0) return timeout_ms;
  }
  return -1;
}

TEST(RouterProcess, ClientsMayStandStillForLongerThanOurOwnProcesses) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/router_process_", getpid(), ".gguf");
  ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), path).ok());
  RouterOptions options;
  options.model = path;
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(path);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(UserTimeoutMs(ParseHostPort((*router)->address())->port), absl::ToInt64Milliseconds(absl::Minutes(4)));
  // Whoever takes nothing of its answer is ended by the router, which says why, long before the transport would do it.
  EXPECT_GT(kPublicKeepAlive.time, ServiceLimits().stall_timeout);
}

}  // namespace
}  // namespace runahead
