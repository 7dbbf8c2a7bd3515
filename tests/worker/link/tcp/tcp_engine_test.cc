#include "worker/link/tcp/tcp_engine.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/tcp/raw_peer.h"
#include "worker/link/tcp/tcp_socket.h"
#include "worker/link/tcp/tcp_wire.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::Hello;
using ::runahead::testing::kNowhere;
using ::runahead::testing::Pattern;
using ::runahead::testing::RawPeer;
using ::runahead::testing::RawSocket;
using ::runahead::testing::Room;

std::unique_ptr<TcpEngine> NewTcpEngine(absl::Duration hello_timeout = absl::Seconds(60)) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.hello_timeout = hello_timeout;
  return *TcpEngine::Start(options);
}

absl::Status Await(const Event& event) {
  return event.Wait(testing::LongestWait());
}

// How something ended.
class Outcome {
 public:
  void Set(const absl::Status& status) { set_.Fire(status); }
  absl::StatusCode Await() const { return set_.event().Wait(testing::LongestWait()).code(); }

 private:
  EventSource set_;
};

void RaiseDescriptors(rlim_t least) {
  rlimit limit{};
  RUNAHEAD_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= least);
  limit.rlim_cur = std::max(limit.rlim_cur, least);
  RUNAHEAD_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// A small and a large message from a new peer arrive.
void ExpectServing(TcpEngine& engine) {
  const auto peer = NewTcpEngine();
  EventSource small;
  Outcome large;
  const BufferRef into = Room(100'000);
  engine.SetHandler(MessageKind::kEdgeControl, [&](const Message&) { small.Fire(absl::OkStatus()); });
  engine.SetHandler(MessageKind::kSlice, [&](const Message& message) {
    message.payload->Accept({{into}}, [&](const absl::Status& status, WireTime) { large.Set(status); });
  });
  peer->Send(engine.self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
  peer->Send(engine.self(), MessageKind::kSlice, "", Pattern(into.size, 1), [](const absl::Status&) {});
  EXPECT_TRUE(Await(small.event()).ok());
  EXPECT_EQ(large.Await(), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(into), Bytes(Pattern(into.size, 1)));
  engine.SetHandler(MessageKind::kEdgeControl, nullptr);
  engine.SetHandler(MessageKind::kSlice, nullptr);
}

TEST(TcpEngine, GarbageAtThePortLeavesItServing) {
  const auto engine = NewTcpEngine();
  std::mt19937_64 random(7);
  std::deque<RawSocket> strangers;  // some stay
  const auto say = [&](const std::string& bytes) {
    strangers.emplace_back(engine->self().address).Say(bytes);
    if (strangers.size() > 20) strangers.pop_front();
  };
  for (size_t size = 0; size <= 200; ++size) {
    std::string noise(size, '\0');
    say(noise);
    say(std::string(size, '\xff'));
    for (char& byte : noise) byte = static_cast<char>(random());
    say(noise);
    // The magic is right and nothing else is.
    noise.replace(0, std::min<size_t>(size, 4), Hello({}, 0).substr(0, std::min<size_t>(size, 4)));
    say(noise);
  }
  say("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  say(std::string(1 << 20, 'x'));
  ExpectServing(*engine);
}

TEST(TcpEngine, AHelloThatIsNotForItIsRefused) {
  const auto engine = NewTcpEngine();
  const PeerId self = engine->self();
  const PeerId stranger{kNowhere, 5};
  TcpHello other_version, long_address, no_address;
  other_version.version = TcpHello::kVersion + 1;
  other_version.to = self.incarnation;
  long_address.to = no_address.to = self.incarnation;
  long_address.address_bytes = 0xffff;
  for (const std::string& hello : {Hello(stranger, self.incarnation + 1), TcpBytes(other_version) + kNowhere,
                                   TcpBytes(long_address), TcpBytes(no_address)}) {
    RawSocket socket(self.address);
    socket.Say(hello);
    EXPECT_TRUE(socket.Closed());
  }
  // A known incarnation at another address.
  const RawPeer peer(*engine);
  RawPeer impostor(*engine, {"127.0.0.1:2", peer.id.incarnation});
  impostor.Prove(ClusterKey());
  EXPECT_TRUE(impostor.socket.Closed());
  EXPECT_NE(engine->Transport(peer.id), "");
  ExpectServing(*engine);
}

TEST(TcpEngine, WhoSaysNoWholeHelloIsClosed) {
  const auto engine = NewTcpEngine(absl::Milliseconds(50));
  RawSocket mute(engine->self().address), slow(engine->self().address);
  slow.Say(Hello({kNowhere, 5}, engine->self().incarnation).substr(0, 20));
  EXPECT_TRUE(mute.Closed());
  EXPECT_TRUE(slow.Closed());
  // Who answers a connection made from here has the same time.
  const auto backlog = ListenTcp({"127.0.0.1", 0});
  Outcome dead;
  engine->Connect({backlog->address, 5}, [&](const absl::Status& why) { dead.Set(why); });
  EXPECT_EQ(dead.Await(), absl::StatusCode::kUnavailable);
}

TEST(TcpEngine, AFrameThatCannotBeEndsItsConnectionOnly) {
  const auto engine = NewTcpEngine();
  const auto frame = [](TcpFrame kind, uint16_t message, uint32_t header, uint64_t bytes, uint64_t transfer) {
    TcpPrefix prefix;
    prefix.frame = kind;
    prefix.kind = message;
    prefix.header_bytes = header;
    prefix.bytes = bytes;
    prefix.transfer = transfer;
    return TcpBytes(TcpSealed(prefix));  // and nothing after it that could be what ends the connection
  };
  const auto slice = static_cast<uint16_t>(MessageKind::kSlice);
  const auto control = static_cast<uint16_t>(MessageKind::kEdgeControl);
  const RawPeer bystander(*engine);
  for (const std::string& bytes : {
           frame(TcpFrame::kMessage, slice, 0xffffffff, 0, 0),
           frame(TcpFrame::kMessage, slice, kMaxHeader + 1, 0, 0),
           frame(TcpFrame::kMessage, slice, 0, kEagerBytes + 1, 0),
           frame(TcpFrame::kMessage, slice, 0, ~uint64_t{0}, 0),
           frame(TcpFrame::kMessage, 0, 0, 0, 0),
           frame(TcpFrame::kMessage, 0xffff, 0, 0, 0),
           frame(TcpFrame::kOffer, slice, 0, 0, 0),
           frame(TcpFrame::kOffer, slice, 0, ~uint64_t{0}, 0),
           frame(TcpFrame::kOffer, slice, 0, 10'000, 1),
           frame(TcpFrame::kOffer, control, 0, 10'000, 0),
           frame(TcpFrame::kMessage, control, 0, 1, 0),
           frame(TcpFrame::kGrant, 0, 0, 0, 0),
           frame(TcpFrame::kAgain, 0, 0, 0, 0),
           frame(TcpFrame::kAnswer, 0, 0, 0, ~uint64_t{0}),
           frame(TcpFrame::kChunk, 0, 0, ~uint64_t{0}, 0),
           frame(static_cast<TcpFrame>(0), slice, 0, 0, 0),
           frame(static_cast<TcpFrame>(200), slice, 0, 0, 0),
       }) {
    RawPeer peer(*engine);
    peer.socket.Say(bytes);
    EXPECT_TRUE(peer.socket.Closed());
  }
  EXPECT_NE(engine->Transport(bystander.id), "");
  ExpectServing(*engine);
}

// Whatever it makes of what was sent: another kind, size or transfer, or another header of the same size.
TEST(TcpEngine, AFlippedBitOfPrefixOrHeaderEndsItsConnectionAndNothingIsHeard) {
  const auto engine = NewTcpEngine();
  std::atomic<int> heard = 0;
  for (const MessageKind kind : {MessageKind::kSlice, MessageKind::kEdgeControl}) {
    engine->SetHandler(kind, [&](const Message&) { ++heard; });
  }
  const std::string header = "a header";
  TcpPrefix prefix;
  prefix.kind = static_cast<uint16_t>(MessageKind::kSlice);
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  const std::string message = TcpBytes(TcpSealed(prefix, header)) + header;
  for (size_t byte = 0; byte < message.size(); ++byte) {
    std::string flipped = message;
    flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << (byte % 8)));
    RawPeer peer(*engine);
    peer.socket.Say(flipped);
    EXPECT_TRUE(peer.socket.Closed()) << byte;
  }
  EXPECT_EQ(heard, 0);
  ExpectServing(*engine);
}

TEST(TcpEngine, MoreBytesThanWereAnnouncedEndTheTransfer) {
  const auto engine = NewTcpEngine();
  Outcome done;
  const BufferRef into = Room(10'000);
  engine->SetHandler(MessageKind::kSlice, [&](const Message& message) {
    message.payload->Accept({{into}}, [&](const absl::Status& status, WireTime) { done.Set(status); });
  });
  RawPeer peer(*engine);
  TcpPrefix prefix;
  prefix.frame = TcpFrame::kOffer;
  prefix.kind = static_cast<uint16_t>(MessageKind::kSlice);
  prefix.bytes = into.size;
  peer.socket.Say(TcpBytes(TcpSealed(prefix)));
  EXPECT_EQ(TcpRead<TcpPrefix>(peer.socket.Hear(sizeof(prefix)).data()).frame, TcpFrame::kGrant);
  prefix.frame = TcpFrame::kChunk;
  prefix.bytes = into.size - 1;
  peer.socket.Say(TcpBytes(TcpSealed(prefix)) + std::string(prefix.bytes, 'x'));
  prefix.bytes = 2;
  peer.socket.Say(TcpBytes(TcpSealed(prefix)) + "xx");
  EXPECT_EQ(done.Await(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peer.socket.Closed());
}

// Nobody here takes what comes: the handler keeps it.
TEST(TcpEngine, APeerThatFloodsIsGivenUpAndTheRestServed) {
  const auto engine = NewTcpEngine();
  std::deque<std::shared_ptr<MessagePayload>> kept;
  TcpPrefix prefix;
  prefix.kind = static_cast<uint16_t>(MessageKind::kSlice);
  for (const TcpFrame flood : {TcpFrame::kOffer, TcpFrame::kMessage}) {
    engine->SetHandler(MessageKind::kSlice, [&](const Message& message) { kept.push_back(message.payload); });
    RawPeer peer(*engine);
    prefix.frame = flood;
    prefix.bytes = flood == TcpFrame::kOffer ? 10'000 : kEagerBytes;
    const std::string body(flood == TcpFrame::kOffer ? 0 : kEagerBytes, 'x');
    for (prefix.transfer = 0; prefix.transfer < 66'000; ++prefix.transfer)
      peer.socket.Say(TcpBytes(TcpSealed(prefix)) + body);
    EXPECT_TRUE(peer.socket.Closed());
    engine->SetHandler(MessageKind::kSlice, nullptr);
    kept.clear();
  }
  ExpectServing(*engine);
}

// Nobody reads at the port until all are connected.
TEST(TcpEngine, TwoHundredPeersThatComeAtOnceAllGetThrough) {
  constexpr int kPeers = 200;
  RaiseDescriptors(8 * kPeers);
  const auto engine = NewTcpEngine();
  EventSource held, let_go, all_heard;
  std::atomic<int> heard = 0;
  engine->SetHandler(MessageKind::kSlice, [&](const Message&) {
    held.Fire(absl::OkStatus());
    let_go.event().Wait().IgnoreError();
  });
  engine->SetHandler(MessageKind::kEdgeControl, [&](const Message&) {
    if (++heard == kPeers) all_heard.Fire(absl::OkStatus());
  });
  const auto holder = NewTcpEngine();
  holder->Send(engine->self(), MessageKind::kSlice, "", ConstBufferRef(), [](const absl::Status&) {});
  ASSERT_TRUE(Await(held.event()).ok());

  std::atomic<int> lost = 0;
  std::deque<std::unique_ptr<TcpEngine>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(NewTcpEngine());
    peers.back()->Connect(engine->self(), [&](const absl::Status&) { ++lost; });
    peers.back()->Send(engine->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    // Commands run in order: when this has, the connection is under way.
    EXPECT_NE(peers.back()->Transport(engine->self()), "");
  }
  let_go.Fire(absl::OkStatus());
  EXPECT_TRUE(Await(all_heard.event()).ok()) << heard << " heard";
  EXPECT_EQ(lost, 0);
  for (const auto& peer : peers) peer->Close(engine->self().key());
}

TEST(TcpEngine, APeerThatDoesNotReadIsGivenUpAndTheRestServed) {
  const auto engine = NewTcpEngine();
  RawPeer peer(*engine);
  Outcome dead;
  EventSource all;
  std::atomic<int> ended = 0;
  constexpr int kMessages = 25'000;
  // Not because the system gave the connection up, as it does some seconds later.
  engine->Connect(peer.id, [&](const absl::Status& why) {
    dead.Set(absl::StrContains(why.message(), "does not read") ? why
                                                               : absl::InternalError("it died of something else"));
  });
  for (int i = 0; i < kMessages; ++i) {
    engine->Send(peer.id, MessageKind::kEdgeControl, std::string(kMaxHeader, 'x'), ConstBufferRef(),
                 [&](const absl::Status&) {
                   if (++ended == kMessages) all.Fire(absl::OkStatus());
                 });
  }
  EXPECT_EQ(dead.Await(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Await(all.event()).ok());
  ExpectServing(*engine);
}

// A transfer of 4 MiB and one of 128 MiB at once: when the small one is whole, a question and its answer still overtake
// the large one.
TEST(TcpEngine, TransfersTakeTurnsAndSmallMessagesGoBetween) {
  const auto a = NewTcpEngine(), b = NewTcpEngine();
  const PeerId at_a = a->self(), at_b = b->self();  // the handlers run on the other engine's thread
  const BufferRef large = Room(size_t{128} << 20), small = Room(size_t{4} << 20);
  Outcome large_done, overtook;
  std::atomic<bool> large_whole = false;
  std::vector<std::shared_ptr<MessagePayload>> offers;
  b->SetHandler(MessageKind::kSlice, [&](const Message& message) {
    offers.push_back(message.payload);
    if (offers.size() < 2) return;
    offers[0]->Accept({{large}}, [&](const absl::Status& status, WireTime) {
      large_whole = true;
      large_done.Set(status);
    });
    offers[1]->Accept({{small}}, [&](const absl::Status&, WireTime) {
      b->Send(at_a, MessageKind::kEdgeControl, "question", ConstBufferRef(), [](const absl::Status&) {});
    });
  });
  a->SetHandler(MessageKind::kEdgeControl, [&](const Message&) {
    a->Send(at_b, MessageKind::kEdgeControl, "answer", ConstBufferRef(), [](const absl::Status&) {});
  });
  b->SetHandler(MessageKind::kEdgeControl, [&](const Message&) {
    overtook.Set(large_whole ? absl::InternalError("the large transfer was first") : absl::OkStatus());
  });
  a->Send(b->self(), MessageKind::kSlice, "", Pattern(large.size, 1), [](const absl::Status&) {});
  a->Send(b->self(), MessageKind::kSlice, "", Pattern(small.size, 2), [](const absl::Status&) {});
  EXPECT_EQ(overtook.Await(), absl::StatusCode::kOk);
  EXPECT_EQ(large_done.Await(), absl::StatusCode::kOk);
  EXPECT_EQ(Bytes(large), Bytes(Pattern(large.size, 1)));
  EXPECT_EQ(Bytes(small), Bytes(Pattern(small.size, 2)));
}

TEST(TcpEngine, BytesGoIntoPiecesOfAnySize) {
  const auto a = NewTcpEngine(), b = NewTcpEngine();
  constexpr size_t kSize = (size_t{3} << 20) + 17;
  std::vector<BufferRef> pieces;
  for (size_t left = kSize, size = 0; left > 0; ++size) {
    pieces.push_back(Room(std::min(left, size * 13)));  // the first has none
    left -= pieces.back().size;
  }
  pieces.push_back(BufferRef());
  Outcome done;
  b->SetHandler(MessageKind::kSlice, [&](const Message& message) {
    message.payload->Accept({pieces}, [&](const absl::Status& status, WireTime) { done.Set(status); });
  });
  a->Send(b->self(), MessageKind::kSlice, "", Pattern(kSize, 3), [](const absl::Status&) {});
  ASSERT_EQ(done.Await(), absl::StatusCode::kOk);
  std::string whole;
  for (const BufferRef& piece : pieces) {
    if (piece.size > 0) whole += Bytes(piece);
  }
  EXPECT_EQ(whole, Bytes(Pattern(kSize, 3)));
}

TEST(TcpEngine, BothSidesMayConnectAndEndAtOnce) {
  for (int round = 0; round < 50; ++round) {
    const auto a = NewTcpEngine(), b = NewTcpEngine();
    EventSource at_a, at_b;
    Outcome dead;
    a->SetHandler(MessageKind::kEdgeControl, [&](const Message&) { at_a.Fire(absl::OkStatus()); });
    b->SetHandler(MessageKind::kEdgeControl, [&](const Message&) { at_b.Fire(absl::OkStatus()); });
    b->Connect(a->self(), [&](const absl::Status& why) { dead.Set(why); });
    a->Send(b->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    b->Send(a->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    ASSERT_TRUE(Await(at_a.event()).ok());
    ASSERT_TRUE(Await(at_b.event()).ok());
    a->Close(b->self().key());
    ASSERT_EQ(dead.Await(), absl::StatusCode::kUnavailable);
  }
}

TEST(TcpEngine, AConnectionThatWasClosedIsMadeAnewAtOnce) {
  const auto a = NewTcpEngine(), b = NewTcpEngine();
  for (int round = 0; round < 200; ++round) {
    EventSource heard;
    b->SetHandler(MessageKind::kEdgeControl, [&](const Message&) { heard.Fire(absl::OkStatus()); });
    a->Send(b->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    ASSERT_TRUE(Await(heard.event()).ok()) << round;
    a->Close(b->self().key());
    b->SetHandler(MessageKind::kEdgeControl, nullptr);
  }
}

TEST(TcpEngine, AHostThatIsNoAddressIsRefused) {
  EXPECT_EQ(TcpEngine::Start({1, 0, "no-address"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TcpEngine::Start({1, 0, "192.0.2.1"}).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace runahead
