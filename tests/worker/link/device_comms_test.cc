#include "worker/link/device_comms.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

// Communicators whose receptions end when and in which order a test says so.
class HandComms final : public PeerCommFactory {
 public:
  const std::string& identity() const override { return identity_; }
  absl::StatusOr<std::string> NewId() override { return std::string(128, 'i'); }
  absl::StatusOr<std::unique_ptr<PeerComm>> Open(const std::string&, PeerRank) override {
    return std::make_unique<Comm>(received_);
  }
  void End(size_t reception) { received_[reception].Fire(absl::OkStatus()); }

 private:
  class Comm final : public PeerComm {
   public:
    explicit Comm(std::vector<EventSource>& received) : received_(received) {}
    Event ready() const override { return Event(); }
    Event Send(ConstBufferRef, std::shared_ptr<uint64_t>) override { return Event(); }
    Event Recv(BufferRef, std::shared_ptr<uint64_t>) override { return received_.emplace_back().event(); }
    void Stop() override {}
    absl::Status Health() const override { return absl::OkStatus(); }

   private:
    std::vector<EventSource>& received_;
  };

  const std::string identity_ = "by hand";
  std::vector<EventSource> received_;
};

TEST(DeviceComms, WhoeverHearsOfItFirstAFrameIsOnTheWireWhenTheOneBeforeHasEnded) {
  HandComms hand;
  DeviceCommsShared shared(hand);
  EventSource made;
  const auto comms = std::make_shared<DeviceComms>(
      shared, /*draws_ids=*/true,
      DeviceComms::Hooks{[made](const std::string&) { made.Fire(absl::OkStatus()); }, [](const absl::Status&) {}});
  comms->OnOpened();
  ASSERT_TRUE(made.event().Wait(testing::LongestWait()).ok());
  std::vector<std::shared_ptr<Came>> came;
  std::vector<Event> ends;
  for (int i = 0; i < 3; ++i) {
    came.push_back(std::make_shared<Came>());
    ends.push_back(comms->Recv(testing::Room(16), came.back()));
  }
  hand.End(2);
  hand.End(1);
  for (const Event& end : ends) EXPECT_FALSE(end.fired());
  hand.End(0);
  for (const Event& end : ends) EXPECT_TRUE(end.Wait(testing::LongestWait()).ok());
  for (int i = 1; i < 3; ++i) EXPECT_GE(came[i]->first, came[i - 1]->last);
  comms->Fail(absl::UnavailableError("the test is over"));
  EXPECT_TRUE(comms->gone().Wait(testing::LongestWait()).ok());
}

}  // namespace
}  // namespace runahead
