// Which edges go from GPU to GPU, and which through the hosts.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_peer_comm.h"
#include "tests/testing/patience.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/link/host_buffer.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::FakePeerCommFactory;
using ::runahead::testing::FakePeerNetwork;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

class ChosenEdge : public ::testing::Test {
 protected:
  static constexpr char kIdentity[] = "nccl 2.27.7 GPU-1 host 1";

  // A worker, whose copies through the host are counted by its device; without an identity it has no links of GPUs.
  struct Worker {
    Worker(FakePeerNetwork& network, const std::string& identity)
        : comms(network, absl::StrCat("of ", identity), identity),
          edges(*engine, {.staging = std::make_unique<EdgeStaging>(device, 1 << 20),
                          .comms = identity.empty() ? nullptr : &comms}) {}
    testing::FakeDevice device;
    const std::unique_ptr<MessageEngine> engine = NewEngine();
    FakePeerCommFactory comms;
    MessageEdgeFactory edges;
  };

  // Sends a frame from a to b and says whether it went from GPU to GPU.
  bool IsDirect(Worker& a, Worker& b) {
    const auto to_b = *a.edges.Open(b.edges.self());
    const auto to_a = *b.edges.Open(a.edges.self());
    const size_t before = network_.transfers();
    const BufferRef into = Room(10'000);
    const Event got = to_a->Recv({1, 0, 0}, into);
    to_b->Send({1, 0, 0}, Pattern(10'000, 1), Event());
    EXPECT_TRUE(got.Wait(testing::LongestWait()).ok());
    EXPECT_EQ(Bytes(into), Bytes(Pattern(10'000, 1)));
    return network_.transfers() > before;
  }

  FakePeerNetwork network_;
  Worker own_{network_, kIdentity};
};

TEST_F(ChosenEdge, WhatFitsGoesFromGpuToGpu) {
  Worker peer(network_, "nccl 2.27.7 GPU-2 host 1");
  EXPECT_EQ(own_.edges.self(), own_.engine->self());
  EXPECT_EQ(own_.edges.self().device_link, kIdentity);
  EXPECT_TRUE(IsDirect(own_, peer));
}

TEST_F(ChosenEdge, WhatDoesNotFitGoesThroughTheHosts) {
  Worker no_gpu(network_, "");
  Worker other_version(network_, "nccl 2.28.9 GPU-2 host 1");
  Worker same_gpu(network_, kIdentity);
  EXPECT_FALSE(IsDirect(own_, no_gpu));
  EXPECT_FALSE(IsDirect(own_, other_version));
  EXPECT_FALSE(IsDirect(same_gpu, own_));
}

TEST_F(ChosenEdge, CloseMeansTheEdgeWhicheverWasChosen) {
  Worker direct(network_, "nccl 2.27.7 GPU-2 host 1"), through_hosts(network_, "");
  for (Worker* peer : {&direct, &through_hosts}) {
    const auto edge = *own_.edges.Open(peer->edges.self());
    EXPECT_EQ(*own_.edges.Open(peer->edges.self()), edge);
    EXPECT_TRUE(edge->Health().ok());
    own_.edges.Close(peer->edges.self());
    EXPECT_EQ(edge->Health().code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(own_.edges.Open(peer->edges.self()).ok()) << "closed for good";
  }
  own_.edges.Close({"never met", 9});
}

}  // namespace
}  // namespace runahead
