#include "server/base/listening_sockets.h"

#include <netinet/in.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

bool CanConnect(const std::string& host, int port) {
  const absl::StatusOr<SocketAddress> to = NumericSocketAddress({host, port});
  if (!to.ok()) return false;
  const Descriptor socket(::socket(to->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(socket.get(), to->get(), to->length) == 0;
}

TEST(ListenOn, TakesAFreePortForAllAddressesOfAName) {
  const auto sockets = ListenOn("listen", {"localhost", 0});
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_EQ(sockets->address.host, "localhost");
  EXPECT_GT(sockets->address.port, 0);
  for (const Descriptor& socket : sockets->sockets) {
    const SocketAddress own = OwnAddress(socket);
    EXPECT_EQ(PortOf(own.storage), sockets->address.port);
    EXPECT_TRUE(CanConnect(NumericHost(*own.get()), sockets->address.port)) << NumericHost(*own.get());
  }
}

TEST(ListenOn, EverywhereIsAllAddressesOfBothFamilies) {
  const bool has_v6 = ListenOn("listen", {"::1", 0}).ok();
  for (const char* const everywhere : {"0.0.0.0", "::"}) {
    const auto sockets = ListenOn("listen", {everywhere, 0});
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_THAT(sockets->sockets, SizeIs(1));
    EXPECT_EQ(sockets->address.host, everywhere);
    EXPECT_TRUE(CanConnect("127.0.0.1", sockets->address.port));
    EXPECT_EQ(CanConnect("::1", sockets->address.port), has_v6);
  }
}

TEST(ListenOn, TwoCannotListenAtOnePort) {
  const auto first = ListenOn("listen", {"127.0.0.1", 0});
  ASSERT_TRUE(first.ok());
  const int port = first->address.port;
  for (const char* const host : {"127.0.0.1", "0.0.0.0", "::", "localhost"}) {
    const auto second = ListenOn("metrics_listen", {host, port});
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << host;
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr(absl::StrCat("metrics_listen: cannot listen on ", FormatHostPort({host, port}),
                                       ": Address already in use; give a free port")));
  }
}

TEST(ListenOn, AnUnknownHostIsSaid) {
  EXPECT_THAT(std::string(ListenOn("listen", {"no-such-host.invalid", 1}).status().message()),
              HasSubstr("listen: cannot listen on no-such-host.invalid:1: "));
  EXPECT_THAT(std::string(ListenOn("listen", {"192.0.2.1", 1}).status().message()),
              HasSubstr("Cannot assign requested address"));
}

}  // namespace
}  // namespace runahead
