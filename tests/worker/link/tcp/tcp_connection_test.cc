#include "worker/link/tcp/tcp_connection.h"

#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "server/base/random.h"
#include "tests/testing/patience.h"
#include "tests/testing/sum_of.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/tcp/raw_peer.h"

namespace runahead {
namespace {

using ::runahead::testing::RawPeer;
using ::runahead::testing::Room;

TEST(TcpConnection, BytesAreOnTheWireFromTheFirstChunkToTheLast) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  const auto engine = *TcpEngine::Start(options);
  EventSource first_came, whole;
  WireTime wire;
  const BufferRef into = Room(30'000);
  engine->SetHandler(MessageKind::kEdgeControl, [&](const Message&) { first_came.Fire(absl::OkStatus()); });
  engine->SetHandler(MessageKind::kSlice, [&](const Message& message) {
    message.payload->Accept({{into}}, [&](const absl::Status& status, WireTime time) {
      wire = time;
      whole.Fire(status);
    });
  });
  RawPeer peer(*engine);
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kOffer;
  prefix.kind = static_cast<uint16_t>(MessageKind::kSlice);
  prefix.bytes = into.size;
  peer.socket.Say(TcpBytes(TcpSealed(prefix)));
  EXPECT_EQ(TcpRead<TcpPrefix>(peer.socket.Hear(sizeof(prefix)).data()).frame, TcpFrame::kGrant);
  const absl::Time granted = MonotonicNow();
  TcpPrefix marker;
  marker.kind = static_cast<uint16_t>(MessageKind::kEdgeControl);
  prefix.frame = TcpFrame::kChunk;
  prefix.bytes = into.size / 2;
  peer.socket.Say(TcpBytes(TcpSealed(prefix)) + std::string(prefix.bytes, 'x') + TcpBytes(TcpSealed(marker)));
  ASSERT_TRUE(first_came.event().Wait(testing::LongestWait()).ok());
  const absl::Time between = MonotonicNow();
  const std::string bytes = std::string(prefix.bytes, 'x') + std::string(prefix.bytes, 'y');
  prefix.sum = testing::SumOf(/*seed=*/0, bytes.data(), bytes.size());
  peer.socket.Say(TcpBytes(TcpSealed(prefix)) + std::string(prefix.bytes, 'y'));
  ASSERT_TRUE(whole.event().Wait(testing::LongestWait()).ok());
  EXPECT_GE(wire.first, granted);
  EXPECT_LE(wire.first, between);
  EXPECT_GE(wire.last, between);
  EXPECT_LE(wire.last, MonotonicNow());
  engine->SetHandler(MessageKind::kSlice, nullptr);
  engine->SetHandler(MessageKind::kEdgeControl, nullptr);
}

}  // namespace
}  // namespace runahead
