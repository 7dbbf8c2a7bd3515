#include "server/rpc/open_connections.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "gtest/gtest.h"
#include "server/base/descriptor.h"

namespace runahead {
namespace {

Descriptor NewSocket() {
  return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

TEST(OpenConnections, ForgetsWhatWasClosed) {
  OpenConnections open;
  const Descriptor stays = NewSocket();
  Descriptor ends = NewSocket();
  open.Add(stays.get(), "10.0.0.1");
  open.Add(ends.get(), "10.0.0.2");
  open.Sweep();
  EXPECT_EQ(open.count(), 2);
  EXPECT_EQ(open.CountOf("10.0.0.2"), 1);
  ends.Close();
  open.Sweep();
  EXPECT_EQ(open.count(), 1);
  EXPECT_EQ(open.CountOf("10.0.0.1"), 1);
  EXPECT_EQ(open.CountOf("10.0.0.2"), 0);
}

TEST(OpenConnections, SeesThatADescriptorIsAnothers) {
  OpenConnections open;
  Descriptor first = NewSocket();
  const int number = first.get();
  open.Add(number, "10.0.0.1");
  first.Close();
  Descriptor second = NewSocket();
  ASSERT_EQ(second.get(), number) << "the system gives the lowest that is free";
  open.Add(number, "10.0.0.2");
  EXPECT_EQ(open.count(), 1);
  EXPECT_EQ(open.CountOf("10.0.0.1"), 0);
  second.Close();
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(file.get(), number);
  open.Sweep();
  EXPECT_EQ(open.count(), 0);
}

}  // namespace
}  // namespace runahead
