// The one transfer with its next users: a chain's head that reads a prefix from a decode worker, and a decode worker
// that takes a sequence over from another. Each over every wire, and in both directions.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_peer_comm.h"
#include "tests/testing/patience.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/handoff/handoff_contract.h"
#include "tests/worker/link/new_engine.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/slice_sender.h"
#include "worker/link/message/message_edge.h"

namespace runahead::testing {
namespace {

enum class Wire { kTcp, kStaged, kGpu };

constexpr int64_t kTokens = 200;  // in one block, so that a layer's rows are one piece

// A decode worker with edges. What it sends lies in memory of the host, or of a device that the host cannot read.
struct Worker {
  Worker(Wire wire, FakePeerNetwork& network, uint64_t number)
      : on_device(wire == Wire::kStaged),
        comms(network, absl::StrCat("worker ", number), absl::StrCat("nccl 2.27.7 GPU-", number, " host 1")),
        store(*KvStore::Create(
            {.layers = kLayers, .row_bytes = kRowBytes, .capacity_tokens = 8 * kKvBlockTokens, .incarnation = number},
            host, clock)),
        slices(*store, {}),
        receiver(std::make_unique<MessageHandoffReceiver>(*engine, slices)) {
    MessageEdgeOptions options;
    if (on_device) options.staging = std::make_unique<EdgeStaging>(device, 8 * 1024);
    if (wire == Wire::kGpu) options.comms = &comms;
    edges = std::make_unique<MessageEdgeFactory>(*engine, std::move(options));
    if (on_device) lane = StagingLane::Create(device, "handoff", 8 * 1024);
    sender = std::make_unique<SliceSender>(MakeMessageSliceTransport(*engine),
                                           HandoffSenderOptions{.on_retry = nullptr, .lane = lane});
  }
  ~Worker() {
    edges.reset();
    sender.reset();
    receiver.reset();
    if (lane != nullptr) lane->Stop();
  }

  // A sequence whose rows of a layer are Pattern(_, seed + layer).
  KvStore::Sequence Fill(uint64_t seed) {
    const LeaseId lease = *store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      auto write = store->BeginWrite(lease, layer, 0, kTokens);
      const BufferRef rows = Pattern(kTokens * kRowBytes, seed + layer);
      std::memcpy(write->destination().at(0).data(), rows.data(), rows.size);
      EXPECT_TRUE(write->Commit().Wait().ok());
    }
    return *store->Open(lease);
  }
  // The rows of a layer, where this worker sends from.
  BufferRef Rows(const KvStore::Sequence& sequence, int64_t layer) {
    const BufferRef rows = SpansOf(*store, sequence, layer).at(0).rows.Slice(0, kTokens * kRowBytes);
    return on_device ? device.Holding(rows) : rows;
  }
  BufferRef Place(size_t bytes) { return on_device ? device.Room(bytes) : Room(bytes); }
  std::string Peek(const BufferRef& ref) { return on_device ? device.Peek(ref) : std::string(Bytes(ref)); }

  const bool on_device;
  RemoteDevice device;
  FakeDevice host;
  FakeClock clock;
  const std::unique_ptr<MessageEngine> engine = NewEngine();
  FakePeerCommFactory comms;
  std::unique_ptr<KvStore> store;
  SliceReceiver slices;
  std::unique_ptr<MessageHandoffReceiver> receiver;
  std::unique_ptr<MessageEdgeFactory> edges;
  std::shared_ptr<StagingLane> lane;
  std::unique_ptr<SliceSender> sender;
};

class NextUsers : public ::testing::TestWithParam<Wire> {
 protected:
  static absl::Status Await(const Event& event) { return event.Wait(LongestWait()); }

  FakePeerNetwork network_;
  std::array<Worker, 2> workers_{Worker(GetParam(), network_, 1), Worker(GetParam(), network_, 2)};
};

// Piece 0 of a job is its prefix; the head posts its receives as for any other piece.
TEST_P(NextUsers, AHeadReadsAPrefixFromADecodeWorker) {
  for (int head = 0; head < 2; ++head) {
    Worker &reads = workers_[head], &decodes = workers_[1 - head];
    const JobId job = head + 1;
    const KvStore::Sequence sequence = decodes.Fill(10 * job);
    const auto to_head = *decodes.edges->Open(reads.edges->self());
    const auto to_decode = *reads.edges->Open(decodes.edges->self());
    std::vector<BufferRef> into;
    std::vector<Event> all;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      into.push_back(reads.Place(kTokens * kRowBytes));
      all.push_back(to_decode->Recv({job, layer, 0}, into.back()));
      all.push_back(to_head->Send({job, layer, 0}, decodes.Rows(sequence, layer), Event()));
    }
    all.push_back(to_head->Finish(job));
    for (const Event& event : all) EXPECT_EQ(Await(event), absl::OkStatus());
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(reads.Peek(into[layer]), Bytes(Pattern(kTokens * kRowBytes, 10 * job + layer)));
    }
  }
}

TEST_P(NextUsers, ADecodeWorkerTakesASequenceOverFromAnother) {
  for (int from = 0; from < 2; ++from) {
    Worker &gives = workers_[from], &takes = workers_[1 - from];
    const uint64_t seed = 10 * from + 1;
    const LeaseId lease = *takes.store->Reserve({.prompt_tokens = kTokens, .total_tokens = kTokens});
    {
      const KvStore::Sequence sequence = gives.Fill(seed);
      std::vector<Event> pushed;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        pushed.push_back(
            gives.sender->Push(takes.engine->self(), {lease, layer, 0, kTokens}, gives.Rows(sequence, layer), Event()));
      }
      for (const Event& event : pushed) EXPECT_EQ(Await(event), absl::OkStatus());
    }
    EXPECT_EQ(gives.store->stats().used_bytes, 0) << "it is another's now";
    ASSERT_TRUE(Await(takes.store->Complete(lease)).ok());
    const auto taken = takes.store->Open(lease);
    ASSERT_TRUE(taken.ok()) << taken.status();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const BufferRef rows = SpansOf(*takes.store, *taken, layer).at(0).rows.Slice(0, kTokens * kRowBytes);
      EXPECT_EQ(Bytes(rows), Bytes(Pattern(kTokens * kRowBytes, seed + layer)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, NextUsers, ::testing::Values(Wire::kTcp, Wire::kStaged, Wire::kGpu),
                         [](const auto& wire) {
                           return wire.param == Wire::kTcp ? "Tcp" : wire.param == Wire::kStaged ? "Staged" : "Gpu";
                         });

}  // namespace
}  // namespace runahead::testing
