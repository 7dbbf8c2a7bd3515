// Engines of two clusters do not hear each other, whatever they run over.
#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/link/message_engines.h"

namespace runahead::testing {
namespace {

using ::testing::HasSubstr;

class MessageKey : public OverEveryTransport {
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
INSTANTIATE_TEST_SUITE_P(Transports, MessageKey, EveryTransport(), TransportName);

TEST_P(MessageKey, OnlyWhoHasItIsHeard) {
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

}  // namespace
}  // namespace runahead::testing
