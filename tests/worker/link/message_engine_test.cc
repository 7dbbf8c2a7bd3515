// What holds of every engine, whatever it runs over.
#include "worker/link/message_engine.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"

namespace runahead::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<MessageEngine> EngineWith(const ClusterKey& key) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.key = key;
  auto engine = TcpEngine::Start(options);
  RUNAHEAD_CHECK(engine.ok());
  return *std::move(engine);
}

TEST(MessageEngine, OnlyWhoHasTheClusterKeyIsHeard) {
  const ClusterKey ours("a key of this cluster");
  std::atomic<int> strangers_heard = 0;
  EventSource peer_heard;
  const auto here = EngineWith(ours);
  const auto peer = EngineWith(ours);
  here->SetHandler(MessageKind::kEdgeControl, [&, from = peer->self().key()](const Message& message) {
    if (message.from == from) {
      peer_heard.Fire(absl::OkStatus());
    } else {
      ++strangers_heard;
    }
  });
  for (const ClusterKey& key : {ClusterKey(), ClusterKey("a key of another cluster")}) {
    const auto stranger = EngineWith(key);
    EventSource dead;
    stranger->Connect(here->self(), [&](const absl::Status& why) { dead.Fire(why); });
    stranger->Send(here->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    const absl::Status why = dead.event().Wait(LongestWait());
    EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(why.message()), HasSubstr("the same cluster_key"));
  }
  peer->Send(here->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
  EXPECT_TRUE(peer_heard.event().Wait(LongestWait()).ok());
  EXPECT_EQ(strangers_heard, 0);
}

// Each life of it had a connection that it ended itself, which the system keeps for a minute.
TEST(MessageEngine, AGivenPortIsHadAgainAtOnceByTheNextEpoch) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.port = ParseHostPort(NewEngine()->self().address)->port;
  const auto peer = NewEngine();
  for (; options.epoch < 4; ++options.epoch) {
    const auto here = TcpEngine::Start(options);
    ASSERT_TRUE(here.ok()) << "epoch " << options.epoch << ": " << here.status();
    EXPECT_EQ((*here)->self().address, absl::StrCat("127.0.0.1:", options.port));
    EventSource heard;
    (*here)->SetHandler(MessageKind::kEdgeControl, [&](const Message&) { heard.Fire(absl::OkStatus()); });
    peer->Send((*here)->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    EXPECT_TRUE(heard.event().Wait(LongestWait()).ok());
    (*here)->SetHandler(MessageKind::kEdgeControl, nullptr);
  }
}

TEST(MessageEngine, APortThatIsTakenIsRefusedByTheNameOfTheOption) {
  const auto first = NewEngine();
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.port = ParseHostPort(first->self().address)->port;
  const absl::Status refused = TcpEngine::Start(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(absl::StrCat("link_port: cannot listen on ", first->self().address, ": Address already in use")));
}

// Also while the connection is made, and by both sides at once.
TEST(MessageEngine, MessagesOfOneSenderArriveInOrder) {
  for (int round = 0; round < 40; ++round) {
    const auto here = NewEngine(), there = NewEngine();
    EventSource heard;
    std::string order;
    for (const MessageKind kind : {MessageKind::kEdgeControl, MessageKind::kSlice}) {
      there->SetHandler(kind, [&](const Message& message) {
        order += message.header;
        if (message.header == "4") heard.Fire(absl::OkStatus());
      });
    }
    const auto send = [](MessageEngine& from, const MessageEngine& to, std::string header, size_t bytes) {
      from.Send(to.self(), bytes == 0 ? MessageKind::kEdgeControl : MessageKind::kSlice, std::move(header),
                bytes == 0 ? BufferRef() : Pattern(bytes, 1), [](const absl::Status&) {});
    };
    send(*here, *there, "1", 0);
    send(*there, *here, "", 0);
    send(*here, *there, "2", 10);
    send(*here, *there, "3", 0);
    send(*here, *there, "4", 10);
    ASSERT_TRUE(heard.event().Wait(LongestWait()).ok()) << order;
    there->SetHandler(MessageKind::kEdgeControl, nullptr);
    there->SetHandler(MessageKind::kSlice, nullptr);
    ASSERT_EQ(order, "1234") << "round " << round;
  }
}

// Who had only been connected to, and connects now, must hear that the connection has ended.
TEST(MessageEngine, AnEdgesConnectionThatEndedIsNotMadeAgain) {
  const auto here = NewEngine(), there = NewEngine();
  const auto generation = [](const MessageEngine& engine, uint32_t number) {
    PeerId peer = engine.self();
    peer.generation = number;
    return peer;
  };
  EventSource heard, next_heard;
  there->SetHandler(MessageKind::kEdgeControl, [&](const Message& message) {
    (message.from.generation == 1 ? heard : next_heard).Fire(absl::OkStatus());
  });
  const auto verdict = [&](uint32_t number) {
    here->Send(generation(*there, number), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
  };
  verdict(1);
  ASSERT_TRUE(heard.event().Wait(LongestWait()).ok());
  here->Close(generation(*there, 1).key());
  EventSource refused, dead;
  here->Connect(generation(*there, 1), [&](const absl::Status& why) { refused.Fire(why); });
  EXPECT_EQ(refused.event().Wait(LongestWait()).code(), absl::StatusCode::kUnavailable) << "who closed it";
  there->Connect(generation(*here, 1), [&](const absl::Status& why) { dead.Fire(why); });
  EXPECT_EQ(dead.event().Wait(LongestWait()).code(), absl::StatusCode::kUnavailable) << "who was closed";
  verdict(2);
  EXPECT_TRUE(next_heard.event().Wait(LongestWait()).ok());
}

}  // namespace
}  // namespace runahead::testing
