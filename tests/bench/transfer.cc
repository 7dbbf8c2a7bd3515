// How well the three parts of one frame's way between devices overlap: the copy out of the device, the wire, and the
// copy into the other device, each paced to the same rate. Both ends are engines of this process, over TCP on loopback;
// the wire is paced by the kernel. Checksums are on, and the bytes are compared.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "server/base/random.h"
#include "tests/bench/must.h"
#include "tests/testing/fake_device.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/tcp/tcp_engine.h"

namespace runahead {
namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;

// Copies one after the other at a rate, for the CPU's time of a copy in memory alone: a thread that sleeps too long
// makes up for it where the next copy was queued behind.
class PacedDevice final : public testing::FakeDevice {
 public:
  explicit PacedDevice(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    absl::Time* free_at = nullptr;
    {
      MutexLock lock(mu_);
      free_at = &free_at_[&stream];
    }
    Call(stream, [this, from, to, free_at] {
      constexpr absl::Duration kMostLate = absl::Milliseconds(5);
      const absl::Time now = MonotonicNow();
      *free_at = std::max(*free_at, now - kMostLate) + absl::Seconds(static_cast<double>(to.size) / bytes_per_second_);
      std::memcpy(to.data(), from.data(), to.size);
      const absl::Duration early = *free_at - MonotonicNow();
      if (early > absl::ZeroDuration()) absl::SleepFor(early);
    });
    return absl::OkStatus();
  }

 private:
  const double bytes_per_second_;
  Mutex mu_;
  std::map<Stream*, absl::Time> free_at_ RUNAHEAD_GUARDED_BY(mu_);  // each used by its stream
};

// A process with such a device, and with edges of host memory.
struct Process {
  explicit Process(double bytes_per_second) : device(std::make_shared<PacedDevice>(bytes_per_second)) {
    staged = std::make_unique<MessageEdgeFactory>(
        *device_engine, MessageEdgeOptions{.staging = std::make_unique<EdgeStaging>(*device, kStagingBytes)});
    plain = std::make_unique<MessageEdgeFactory>(*host_engine);
  }
  BufferRef Memory(MemoryKind kind, size_t bytes) { return BufferRef::Whole(Must(device->Allocate(bytes, kind))); }

  std::shared_ptr<Device> device;
  const std::unique_ptr<MessageEngine> device_engine = Must(TcpEngine::Start({RandomBits64()})),
                                       host_engine = Must(TcpEngine::Start({RandomBits64()}));
  std::unique_ptr<MessageEdgeFactory> staged, plain;
};

// All TCP connections of this process.
void PaceSockets(double bytes_per_second) {
  const auto rate = static_cast<uint64_t>(bytes_per_second);
  for (int fd = 0; fd < 1024; ++fd) setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
}

double SecondsOf(const std::vector<Event>& ends, absl::Time begin) {
  for (const Event& end : ends) Must(end.Wait());
  return absl::ToDoubleSeconds(MonotonicNow() - begin);
}

double Copy(Process& process, const BufferRef& from, const BufferRef& to) {
  const std::unique_ptr<Stream> stream = process.device->NewStream("copy");
  const absl::Time begin = MonotonicNow();
  Must(process.device->Copy(*stream, from, to));
  return SecondsOf({process.device->Record(*stream)}, begin);
}

double Frame(EdgeFactory& a, EdgeFactory& b, JobId job, const BufferRef& from, const BufferRef& to) {
  const std::shared_ptr<Edge> there = Must(a.Open(b.self())), back = Must(b.Open(a.self()));
  const absl::Time begin = MonotonicNow();
  const Event got = back->Recv({job, 0, 1}, to);
  const double seconds = SecondsOf({there->Send({job, 0, 1}, from, Event()), got}, begin);
  Must(there->Finish(job).Wait());
  return seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  double gigabytes = 2;
  size_t mebibytes = 64;
  int rounds = 9;
  CLI::App app("A frame from device to device: how far copy, wire and copy back overlap");
  app.add_option("--gigabytes-per-second", gigabytes, "of each of the three");
  app.add_option("--mib", mebibytes, "of the frame");
  app.add_option("--rounds", rounds, "turn about; medians are printed");
  CLI11_PARSE(app, argc, argv);

  const size_t bytes = mebibytes << 20;
  Process a(gigabytes * 1e9), b(gigabytes * 1e9);
  const BufferRef source = a.Memory(MemoryKind::kHost, bytes), sink = b.Memory(MemoryKind::kHost, bytes);
  uint64_t state = 1;
  for (size_t i = 0; i + sizeof(state) <= bytes; i += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(source.data() + i, &state, sizeof(state));
  }
  const BufferRef on_a = a.Memory(MemoryKind::kDevice, bytes), on_b = b.Memory(MemoryKind::kDevice, bytes);
  Copy(a, source, on_a);
  Copy(b, sink, on_b);
  Frame(*a.plain, *b.plain, 1, source.Slice(0, 1), sink.Slice(0, 1));
  Frame(*a.staged, *b.staged, 1, on_a.Slice(0, 1), on_b.Slice(0, 1));
  PaceSockets(gigabytes * 1e9);

  std::vector<double> out, wire, in, whole, ratios;
  for (int round = 0; round < rounds; ++round) {
    const JobId job = static_cast<JobId>(round) + 2;
    wire.push_back(Frame(*a.plain, *b.plain, job, source, sink));
    std::memset(sink.data(), 0, bytes);
    in.push_back(Copy(b, sink, on_b));
    whole.push_back(Frame(*a.staged, *b.staged, job, on_a, on_b));
    out.push_back(Copy(b, on_b, sink));
    RUNAHEAD_CHECK(std::memcmp(source.data(), sink.data(), bytes) == 0);
    ratios.push_back(whole.back() / std::max({out.back(), wire.back(), in.back()}));
  }
  std::printf(
      "%zu MiB at %.2f GB/s each, checksums on: copy out %.2f ms, wire %.2f ms, copy in %.2f ms, all three %.2f ms\n"
      "ratio of all three to the longest one: median %.3f, of medians %.3f, least %.3f\n",
      mebibytes, gigabytes, 1e3 * Median(out), 1e3 * Median(wire), 1e3 * Median(in), 1e3 * Median(whole),
      Median(ratios), Median(whole) / std::max({Median(out), Median(wire), Median(in)}),
      *std::min_element(ratios.begin(), ratios.end()));
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
