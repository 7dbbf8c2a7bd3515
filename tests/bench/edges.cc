// Frames over edges between processes (here: engines of one process, over TCP on loopback): how many bytes a second
// cross one edge and a chain of two, where each frame goes on when it is whole; and what its checksum takes.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/base/memory.h"
#include "server/base/random.h"
#include "tests/bench/must.h"
#include "worker/link/frame_sum.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/message_engine_factory.h"

namespace runahead {
namespace {

constexpr int kFrames = 32;  // of a job, one layer each

BufferRef Memory(size_t bytes) {
  BufferRef memory = BufferRef::Whole(Must(AllocateHostMemory(bytes, nullptr)));
  std::memset(memory.data(), 0x5a, bytes);
  return memory;
}

struct Process {
  std::unique_ptr<MessageEngine> engine = Must(MakeMessageEngine({RandomBits64(), 0, "tcp"}));
  MessageEdgeFactory edges{*engine};
};

// `hops` edges, one behind the other.
void Frames(benchmark::State& state, int hops) {
  const auto size = static_cast<size_t>(state.range(0));
  std::vector<std::unique_ptr<Process>> line;
  for (int i = 0; i <= hops; ++i) line.push_back(std::make_unique<Process>());
  std::vector<std::shared_ptr<Edge>> there, back;
  for (int i = 0; i < hops; ++i) {
    there.push_back(Must(line[i]->edges.Open(line[i + 1]->edges.self())));
    back.push_back(Must(line[i + 1]->edges.Open(line[i]->edges.self())));
  }
  const BufferRef origin = Memory(size);
  std::vector<std::vector<BufferRef>> into(hops);
  for (auto& of_hop : into) {
    for (int i = 0; i < kFrames; ++i) of_hop.push_back(Memory(size));
  }
  JobId job = 0;
  for (auto _ : state) {
    ++job;
    std::vector<Event> ends;
    for (int layer = 0; layer < kFrames; ++layer) {
      const FrameId id{job, layer, 1};
      for (int hop = 0; hop < hops; ++hop) {
        const Reception got = back[hop]->Recv(id, into[hop][layer]);
        if (hop + 1 == hops) {
          ends.push_back(got);
        } else {
          ends.push_back(there[hop + 1]->SendSummed(id, into[hop][layer], got, got.sum()));
        }
      }
      ends.push_back(there[0]->Send(id, origin, Event()));
    }
    for (const Event& end : ends) Must(end.Wait());
    for (const auto& edge : there) Must(edge->Finish(job).Wait());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kFrames * size));
}
void OneEdge(benchmark::State& state) {
  Frames(state, 1);
}
void TwoEdges(benchmark::State& state) {
  Frames(state, 2);
}
BENCHMARK(OneEdge)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK(TwoEdges)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();

void Checksum(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  const BufferRef memory = Memory(size);
  for (auto _ : state) benchmark::DoNotOptimize(SumOnHost({1, 2, 3}, memory.data(), size));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * size));
}
BENCHMARK(Checksum)->Arg(4 << 10)->Arg(256 << 10)->Arg(64 << 20);

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
