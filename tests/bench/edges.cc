// Frames over edges between processes (here: engines of one process, over TCP on loopback): how many bytes a second
// cross one edge and a chain of two, where each frame goes on when it is whole; the same under TLS; and what a frame's
// checksum takes.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/base/memory.h"
#include "server/base/random.h"
#include "tests/bench/must.h"
#include "tests/testing/sum_of.h"
#include "tests/testing/test_ca.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/tcp/link_tls.h"
#include "worker/link/tcp/tcp_engine.h"

namespace runahead {
namespace {

constexpr int kFrames = 32;  // of a job, one layer each

BufferRef Memory(size_t bytes) {
  BufferRef memory = BufferRef::Whole(Must(AllocateHostMemory(bytes, nullptr)));
  std::memset(memory.data(), 0x5a, bytes);
  return memory;
}

// What all of them encrypt with.
std::shared_ptr<const LinkTls> Tls() {
  static const testing::TestCa& ca = *new testing::TestCa;
  static const testing::TestCertificate& own = *new testing::TestCertificate(ca.Sign());
  auto tls = std::make_shared<LinkTls>("runahead-cluster");
  Must(tls->Use({own.cert + own.key, ca.cert(), absl::InfiniteFuture()}));
  return tls;
}

std::unique_ptr<MessageEngine> EngineOver(bool tls) {
  TcpOptions options;
  options.incarnation = RandomBits64();
  if (tls) options.tls = Tls();
  return Must(TcpEngine::Start(options));
}

struct Process {
  explicit Process(bool tls) : engine(EngineOver(tls)) {}
  const std::unique_ptr<MessageEngine> engine;
  MessageEdgeFactory edges{*engine};
};

// `hops` edges, one behind the other.
void Frames(benchmark::State& state, int hops, bool tls) {
  const auto size = static_cast<size_t>(state.range(0));
  std::vector<std::unique_ptr<Process>> line;
  for (int i = 0; i <= hops; ++i) line.push_back(std::make_unique<Process>(tls));
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
  Frames(state, 1, /*tls=*/false);
}
void TwoEdges(benchmark::State& state) {
  Frames(state, 2, /*tls=*/false);
}
void OneEdgeTls(benchmark::State& state) {
  Frames(state, 1, /*tls=*/true);
}
void TwoEdgesTls(benchmark::State& state) {
  Frames(state, 2, /*tls=*/true);
}
BENCHMARK(OneEdge)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK(TwoEdges)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK(OneEdgeTls)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();
BENCHMARK(TwoEdgesTls)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->MeasureProcessCPUTime()->UseRealTime();

void Checksum(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  const BufferRef memory = Memory(size);
  for (auto _ : state) benchmark::DoNotOptimize(testing::SumOf(1, memory.data(), size));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * size));
}
BENCHMARK(Checksum)->Arg(4 << 10)->Arg(256 << 10)->Arg(64 << 20);

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
