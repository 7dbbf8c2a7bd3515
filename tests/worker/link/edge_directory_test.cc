#include "worker/link/edge_directory.h"

#include <memory>
#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

// Connects to nobody.
class IdleEngine final : public MessageEngine {
 public:
  const PeerId& self() const override { return self_; }
  void SetHandler(MessageKind, Handler) override {}
  void Connect(const PeerId&, Done) override {}
  void Send(const PeerId&, MessageKind, std::string, Outbound, Done done) override { done(absl::OkStatus()); }
  void Break(const PeerKey&, const absl::Status&) override {}
  void Close(const PeerKey&) override {}
  void CloseAll(const std::function<bool(const PeerKey&)>&) override {}
  void Stop() override {}
  std::string Transport(const PeerId&) override { return ""; }

 private:
  PeerId self_{"self", 1};
};

// Moves nothing.
class IdleWire final : public EdgeWire {
 public:
  void SendFrame(const FrameId&, ConstBufferRef, FrameSum, std::function<void(absl::Status)>) override {}
  void AcceptFrame(const FrameId&, const ArrivedFrame&, BufferRef, FrameDone) override {}
  void SendControl(const EdgeControl&) override {}
  void Fail(const absl::Status&) override {}
  void AwaitEnd() override {}
};

TEST(EdgeDirectory, WhoFloodsAnEdgeThatIsNotOpenDoesNotFloodTheLog) {
  IdleEngine engine;
  const auto directory = std::make_shared<EdgeDirectory>(engine);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 10'000; ++i) directory->Deliver({7, 0, 1}, [](EdgeWire&) {});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("floods an edge that is not open here"));
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, "floods")).size(), 2u) << "one line, not one a message";
}

TEST(EdgeDirectory, WhatComesWhileAnEdgeOpensWaitsBehindWhatCameBefore) {
  IdleEngine engine;
  const auto directory = std::make_shared<EdgeDirectory>(engine);
  const PeerId peer{"peer", 7};
  std::string order;
  directory->Deliver(peer.key(), [&](EdgeWire&) {
    order += "1";
    directory->Deliver(peer.key(), [&](EdgeWire&) { order += "3"; });
  });
  directory->Deliver(peer.key(), [&](EdgeWire&) { order += "2"; });
  const auto make = [] {
    const auto wire = std::make_shared<IdleWire>();
    return EdgeEnd{EdgeCore::Create(wire, "peer"), wire};
  };
  ASSERT_TRUE(directory->Open(peer, make).ok());
  EXPECT_EQ(order, "123");
  directory->Deliver(peer.key(), [&](EdgeWire&) { order += "4"; });
  EXPECT_EQ(order, "1234") << "at once";
}

}  // namespace
}  // namespace runahead
