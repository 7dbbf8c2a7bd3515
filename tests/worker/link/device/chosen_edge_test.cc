#include "worker/link/device/chosen_edge.h"

#include "gtest/gtest.h"
#include "tests/testing/loopback.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// A worker with two networks: one stands for the GPUs', the other for the hosts'.
struct Worker {
  Worker(LoopbackNetwork& devices, LoopbackNetwork& hosts, uint64_t incarnation, const std::string& identity)
      : id{"worker", incarnation}, edges(identity, devices.Join(id), hosts.Join(id)) {}
  const PeerId id;
  ChosenEdgeFactory edges;
};

class ChosenEdge : public ::testing::Test {
 protected:
  static constexpr char kIdentity[] = "nccl 2.27.7 GPU-1 host 1";

  // Sends a frame from a to b and says whether it went from GPU to GPU.
  bool IsDirect(Worker& a, Worker& b) {
    const auto to_b = *a.edges.Open(b.edges.self());
    const auto to_a = *b.edges.Open(a.edges.self());
    const BufferRef into = Room(100);
    const Event got = to_a->Recv({1, 0, 0}, into);
    to_b->Send({1, 0, 0}, Pattern(100, 1), Event());
    EXPECT_TRUE(got.Wait(absl::Seconds(60)).ok());
    EXPECT_EQ(Bytes(into), Bytes(Pattern(100, 1)));
    const bool direct = devices_->live_jobs(b.id, a.id) > 0;
    EXPECT_EQ(direct, hosts_->live_jobs(b.id, a.id) == 0);
    return direct;
  }

  std::shared_ptr<LoopbackNetwork> devices_ = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kImmediate);
  std::shared_ptr<LoopbackNetwork> hosts_ = LoopbackNetwork::Create(LoopbackNetwork::Delivery::kImmediate);
  Worker own_{*devices_, *hosts_, 1, kIdentity};
};

TEST_F(ChosenEdge, WhatFitsGoesFromGpuToGpu) {
  Worker peer(*devices_, *hosts_, 2, "nccl 2.27.7 GPU-2 host 1");
  EXPECT_EQ(own_.edges.self(), own_.id);
  EXPECT_EQ(own_.edges.self().device_link, kIdentity);
  EXPECT_TRUE(IsDirect(own_, peer));
}

TEST_F(ChosenEdge, WhatDoesNotFitGoesThroughTheHosts) {
  Worker no_gpu(*devices_, *hosts_, 2, "");
  Worker other_version(*devices_, *hosts_, 3, "nccl 2.28.9 GPU-2 host 1");
  Worker same_gpu(*devices_, *hosts_, 4, kIdentity);
  EXPECT_FALSE(IsDirect(own_, no_gpu));
  EXPECT_FALSE(IsDirect(own_, other_version));
  EXPECT_FALSE(IsDirect(same_gpu, own_));
}

TEST_F(ChosenEdge, CloseMeansTheEdgeThatWasChosen) {
  Worker direct(*devices_, *hosts_, 2, "nccl 2.27.7 GPU-2 host 1"), through_hosts(*devices_, *hosts_, 3, "");
  for (Worker* peer : {&direct, &through_hosts}) {
    const auto edge = *own_.edges.Open(peer->edges.self());
    EXPECT_EQ(*own_.edges.Open(peer->edges.self()), edge);
    EXPECT_TRUE(edge->Health().ok());
    own_.edges.Close(peer->id);
    EXPECT_EQ(edge->Health().code(), absl::StatusCode::kUnavailable);
  }
  own_.edges.Close({"never met", 9});
}

TEST_F(ChosenEdge, WhoIsClosedOrCannotBeReachedIsForgotten) {
  Worker peer(*devices_, *hosts_, 2, "nccl 2.27.7 GPU-2 host 1");
  const PeerId id = peer.edges.self();
  ASSERT_TRUE(own_.edges.Open(id).ok());
  EXPECT_EQ(own_.edges.peers(), 1u);
  own_.edges.Close(id);
  EXPECT_EQ(own_.edges.peers(), 0u);
  EXPECT_FALSE(own_.edges.Open(id).ok()) << "closed for good";
  EXPECT_EQ(own_.edges.peers(), 0u);
  // One that dies is known until it is closed: its end has to reach the network that was chosen.
  Worker dying(*devices_, *hosts_, 3, "nccl 2.27.7 GPU-3 host 1");
  const auto edge = *own_.edges.Open(dying.edges.self());
  devices_->Kill(dying.id);
  EXPECT_FALSE(own_.edges.Open(dying.edges.self()).ok());
  EXPECT_EQ(own_.edges.peers(), 1u);
  own_.edges.Close(dying.id);
  EXPECT_EQ(own_.edges.peers(), 0u);
}

}  // namespace
}  // namespace runahead
