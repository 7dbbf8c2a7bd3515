// What a stranger can do at the port of a TCP link whose peers have a key.
#include <atomic>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/tcp/raw_peer.h"

namespace runahead {
namespace {

using ::runahead::testing::kNowhere;
using ::runahead::testing::RawPeer;

const ClusterKey& Ours() {
  static const auto& key = *new ClusterKey("a key of this cluster");
  return key;
}

std::unique_ptr<TcpEngine> NewKeyedEngine() {
  TcpOptions options;
  options.incarnation = RandomBits64();
  options.hello_timeout = absl::Seconds(60);
  options.key = Ours();
  return *TcpEngine::Start(options);
}

class TcpKey : public ::testing::Test {
 protected:
  TcpKey() {
    ExpectHeard();
    here_->Connect(peer_->self(), [this](const absl::Status&) { ++deaths_; });
  }
  // The peer is heard, over the connection that it has.
  void ExpectHeard() {
    EventSource heard;
    here_->SetHandler(MessageKind::kEdgeControl, [this, heard, from = peer_->self().key()](const Message& message) {
      if (message.from == from) {
        heard.Fire(absl::OkStatus());
      } else {
        ++from_strangers_;
      }
    });
    peer_->Send(here_->self(), MessageKind::kEdgeControl, "", ConstBufferRef(), [](const absl::Status&) {});
    EXPECT_TRUE(heard.event().Wait(testing::LongestWait()).ok());
  }
  static std::string Frame() {
    TcpPrefix prefix;
    prefix.kind = static_cast<uint16_t>(MessageKind::kEdgeControl);
    return TcpBytes(TcpSealed(prefix));
  }

  std::atomic<int> deaths_ = 0;  // of the peer, as this end sees it
  std::atomic<int> from_strangers_ = 0;
  const std::unique_ptr<TcpEngine> here_ = NewKeyedEngine();
  const std::unique_ptr<TcpEngine> peer_ = NewKeyedEngine();
};

TEST_F(TcpKey, AFalseClaimDoesNotDisplaceThePeer) {
  RawPeer waiting(*here_, peer_->self());
  const std::vector<std::function<void(RawPeer&)>> tries = {
      [](RawPeer& raw) { raw.socket.Say(std::string(kTcpProofBytes, '\0')); },
      [](RawPeer& raw) { raw.socket.Say(TcpProof(ClusterKey(), true, raw.hello, raw.answer)); },
      [](RawPeer& raw) { raw.socket.Say(TcpProof(ClusterKey("another"), true, raw.hello, raw.answer)); },
      [](RawPeer& raw) { raw.socket.Say(raw.proof); },  // back at its sender
      [](RawPeer& raw) { raw.socket.Say(Frame() + Frame()); },
  };
  for (size_t i = 0; i < tries.size(); ++i) {
    RawPeer stranger(*here_, peer_->self());
    tries[i](stranger);
    EXPECT_TRUE(stranger.socket.Closed()) << i;
  }
  ExpectHeard();
  EXPECT_EQ(deaths_, 0);
  EXPECT_EQ(from_strangers_, 0);
}

TEST_F(TcpKey, AProofIsGoodForItsConnectionOnly) {
  RawPeer honest(*here_, {kNowhere, 5});
  honest.Prove(Ours());
  honest.socket.Say(Frame());
  RawPeer again(*here_, {kNowhere, 5});  // with the same nonce
  EXPECT_EQ(again.hello, honest.hello);
  again.socket.Say(TcpProof(Ours(), /*of_caller=*/true, honest.hello, honest.answer));
  EXPECT_TRUE(again.socket.Closed());
  EXPECT_NE(here_->Transport(honest.id), "");
}

TEST_F(TcpKey, WhoProvesItIsHeard) {
  EventSource heard;
  here_->SetHandler(MessageKind::kEdgeControl, [&](const Message& message) {
    if (message.from.incarnation == 5) heard.Fire(absl::OkStatus());
  });
  RawPeer honest(*here_, {kNowhere, 5});
  honest.Prove(Ours());
  honest.socket.Say(Frame());
  EXPECT_TRUE(heard.event().Wait(testing::LongestWait()).ok());
}

}  // namespace
}  // namespace runahead
