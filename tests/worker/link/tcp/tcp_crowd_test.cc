// Strangers at the port of a TCP link who say nothing, more than it has places for and from the peers' own address.
#include <deque>
#include <memory>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "tests/testing/await.h"
#include "tests/testing/crowd.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/tcp/raw_peer.h"

namespace runahead {
namespace {

using ::runahead::testing::Hello;
using ::runahead::testing::kNowhere;
using ::runahead::testing::RaiseOwnLimit;
using ::runahead::testing::RawPeer;
using ::runahead::testing::RawSocket;
using ::runahead::testing::StandingCrowd;

constexpr size_t kPlaces = 8;

// Its time of a hello is longer than a test waits: who waits for a stranger's to end fails.
std::unique_ptr<TcpEngine> SmallEngine() {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.hello_timeout = absl::Minutes(10);
  options.max_strangers = kPlaces;
  return *TcpEngine::Start(options);
}

// A message of a new peer arrives.
void ExpectHeard(TcpEngine& engine) {
  EventSource heard;
  const auto peer = SmallEngine();
  engine.SetHandler(MessageKind::kEdgeControl, [&](const Message&) { heard.Fire(absl::OkStatus()); });
  peer->Send(engine.self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [&](const absl::Status& status) {
    if (!status.ok()) heard.Fire(status);
  });
  const absl::Status status = heard.event().Wait(testing::LongestWait());
  EXPECT_TRUE(status.ok()) << status;
  engine.SetHandler(MessageKind::kEdgeControl, nullptr);
}

TEST(TcpCrowd, SilentStrangersWhoComeBackKeepNoPeerOut) {
  RaiseOwnLimit();
  const auto engine = SmallEngine();
  const StandingCrowd crowd(engine->self().address, 25 * kPlaces);
  for (int i = 0; i < 20; ++i) ExpectHeard(*engine);
}

TEST(TcpCrowd, WhoHasBeenSilentForLongestIsClosedAsOthersCome) {
  const auto engine = SmallEngine();
  std::deque<RawSocket> strangers;
  for (size_t i = 0; i < 3 * kPlaces; ++i) strangers.emplace_back(engine->self().address);
  for (size_t i = 0; i + kPlaces + 1 < strangers.size(); ++i) EXPECT_TRUE(strangers[i].Closed()) << i;
  ExpectHeard(*engine);
}

// It has said hello, and is slow to prove it; the crowd has come after it.
TEST(TcpCrowd, APeerThatHasSaidHelloOutlastsTheSilent) {
  const auto engine = SmallEngine();
  RawPeer peer(*engine, {kNowhere, 5});
  std::deque<RawSocket> strangers;
  for (size_t i = 0; i < 3 * kPlaces; ++i) strangers.emplace_back(engine->self().address);
  EXPECT_TRUE(strangers.front().Closed());
  EXPECT_TRUE(strangers[kPlaces].Closed());
  peer.Prove(ClusterKey());
  EXPECT_TRUE(
      testing::Await("the peer that proved itself is one", [&] { return !engine->Transport(peer.id).empty(); }));
}

TEST(TcpCrowd, StrangersWhoSayHelloAndProveNothingKeepNoPeerOut) {
  const auto engine = SmallEngine();
  std::deque<RawSocket> strangers;
  for (size_t i = 0; i < 3 * kPlaces; ++i) {
    strangers.emplace_back(engine->self().address).Say(Hello({kNowhere, 5 + i}, engine->self().incarnation));
    EXPECT_FALSE(strangers.back().Hear(1).empty());
  }
  ExpectHeard(*engine);
  EXPECT_TRUE(strangers.front().Closed());
}

TEST(TcpCrowd, WhoDoesNotSayWhoItIsInTimeIsClosed) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.hello_timeout = absl::Milliseconds(200);
  const auto engine = *TcpEngine::Start(options);
  std::deque<RawSocket> strangers;
  for (size_t i = 0; i < kPlaces; ++i) strangers.emplace_back(engine->self().address);
  for (RawSocket& stranger : strangers) EXPECT_TRUE(stranger.Closed());
}

}  // namespace
}  // namespace runahead
