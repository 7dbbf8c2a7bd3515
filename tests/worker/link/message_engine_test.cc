// What holds of every engine, whatever it runs over.
#include "worker/link/message_engine.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/address.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/message_engines.h"

namespace runahead::testing {
namespace {

using ::testing::HasSubstr;

class MessageEngineTest : public OverEveryTransport {
 protected:
  std::unique_ptr<MessageEngine> EngineWith(const ClusterKey& key) {
    MessageEngineOptions options;
    options.incarnation = RandomBits64();
    options.transport = GetParam();
    options.key = key;
    auto engine = MakeMessageEngine(options);
    RUNAHEAD_CHECK(engine.ok());
    return *std::move(engine);
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, MessageEngineTest, EveryTransport(), TransportName);

TEST_P(MessageEngineTest, OnlyWhoHasTheClusterKeyIsHeard) {
  const ClusterKey ours("a key of this cluster");
  std::atomic<int> strangers_heard = 0;
  EventSource peer_heard;
  const auto here = EngineWith(ours);
  const auto peer = EngineWith(ours);
  here->SetHandler(MessageKind::kVerdict, [&, from = peer->self().key()](const Message& message) {
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
    stranger->Send(here->self(), MessageKind::kVerdict, "", ConstBufferRef(), [](const absl::Status&) {});
    const absl::Status why = dead.event().Wait(absl::Seconds(60));
    EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
    // Over UCX it is also possible that the other end closes first.
    if (GetParam() == "tcp") {
      EXPECT_THAT(std::string(why.message()), HasSubstr("the same cluster_key"));
    }
  }
  peer->Send(here->self(), MessageKind::kVerdict, "", ConstBufferRef(), [](const absl::Status&) {});
  EXPECT_TRUE(peer_heard.event().Wait(absl::Seconds(60)).ok());
  EXPECT_EQ(strangers_heard, 0);
}

// Each life of it had a connection that it ended itself, which the system keeps for a minute.
TEST_P(MessageEngineTest, AGivenPortIsHadAgainAtOnceByTheNextEpoch) {
  MessageEngineOptions options;
  options.transport = GetParam();
  options.incarnation = RandomBits64();
  options.port = ParseHostPort(NewEngine(GetParam())->self().address)->port;
  const auto peer = NewEngine(GetParam());
  for (; options.epoch < 4; ++options.epoch) {
    const auto here = MakeMessageEngine(options);
    ASSERT_TRUE(here.ok()) << "epoch " << options.epoch << ": " << here.status();
    EXPECT_EQ((*here)->self().address, absl::StrCat("127.0.0.1:", options.port));
    EventSource heard;
    (*here)->SetHandler(MessageKind::kVerdict, [&](const Message&) { heard.Fire(absl::OkStatus()); });
    peer->Send((*here)->self(), MessageKind::kVerdict, "", ConstBufferRef(), [](const absl::Status&) {});
    EXPECT_TRUE(heard.event().Wait(absl::Seconds(60)).ok());
    (*here)->SetHandler(MessageKind::kVerdict, nullptr);
  }
}

TEST_P(MessageEngineTest, APortThatIsTakenIsRefusedByTheNameOfTheOption) {
  const auto first = NewEngine(GetParam());
  MessageEngineOptions options;
  options.transport = GetParam();
  options.incarnation = RandomBits64();
  options.port = ParseHostPort(first->self().address)->port;
  const absl::Status refused = MakeMessageEngine(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr(absl::StrCat("link_port: cannot listen on ", first->self().address, ": Address already in use")));
}

// Also while the connection is made, and by both sides at once. Over UCX of itself one in thirty came late.
TEST_P(MessageEngineTest, MessagesOfOneSenderArriveInOrder) {
  for (int round = 0; round < 40; ++round) {
    const auto here = NewEngine(GetParam()), there = NewEngine(GetParam());
    EventSource heard;
    std::string order;
    there->SetHandler(MessageKind::kVerdict, [&](const Message& message) {
      order += message.header;
      if (message.header == "4") heard.Fire(absl::OkStatus());
    });
    const auto send = [](MessageEngine& from, const MessageEngine& to, std::string header, size_t bytes) {
      from.Send(to.self(), MessageKind::kVerdict, std::move(header), Pattern(bytes, 1), [](const absl::Status&) {});
    };
    send(*here, *there, "1", 0);
    send(*there, *here, "", 0);
    send(*here, *there, "2", 10);
    send(*here, *there, "3", 0);
    send(*here, *there, "4", 10);
    ASSERT_TRUE(heard.event().Wait(absl::Seconds(60)).ok()) << order;
    there->SetHandler(MessageKind::kVerdict, nullptr);
    ASSERT_EQ(order, "1234") << "round " << round;
  }
}

// Who had only been connected to, and connects now, must hear that the connection has ended.
TEST_P(MessageEngineTest, AnEdgesConnectionThatEndedIsNotMadeAgain) {
  const auto here = NewEngine(GetParam()), there = NewEngine(GetParam());
  const auto generation = [](const MessageEngine& engine, uint32_t number) {
    PeerId peer = engine.self();
    peer.generation = number;
    return peer;
  };
  EventSource heard, next_heard;
  there->SetHandler(MessageKind::kVerdict, [&](const Message& message) {
    (message.from.generation == 1 ? heard : next_heard).Fire(absl::OkStatus());
  });
  const auto verdict = [&](uint32_t number) {
    here->Send(generation(*there, number), MessageKind::kVerdict, "", ConstBufferRef(), [](const absl::Status&) {});
  };
  verdict(1);
  ASSERT_TRUE(heard.event().Wait(absl::Seconds(60)).ok());
  here->Close(generation(*there, 1).key());
  EventSource refused, dead;
  here->Connect(generation(*there, 1), [&](const absl::Status& why) { refused.Fire(why); });
  EXPECT_EQ(refused.event().Wait(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable) << "who closed it";
  there->Connect(generation(*here, 1), [&](const absl::Status& why) { dead.Fire(why); });
  EXPECT_EQ(dead.event().Wait(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable) << "who was closed";
  verdict(2);
  EXPECT_TRUE(next_heard.event().Wait(absl::Seconds(60)).ok());
}

}  // namespace
}  // namespace runahead::testing
