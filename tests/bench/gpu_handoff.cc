// What hand-off does with the device: copies into pinned memory on a stream of its own, alone and while a prompt's pass
// runs beside them; and hand-off's own way there, up to the network.
#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/gpu_model.h"
#include "tests/bench/gpu_suites.h"
#include "tests/testing/dense_kv.h"
#include "worker/link/staging_lane.h"

namespace runahead {
namespace {

constexpr int64_t kRingBytes = 256 << 20;  // that copies go around in, on either side
constexpr int64_t kRawBytes = 1 << 30;
constexpr size_t kStagingBytes = 32 << 20;  // of hand-off's pinned memory
constexpr double kLeastBeside = 0.1;        // seconds of prefill beside copies
constexpr int kRounds = 7;

// Pieces of a ring in one kind of memory to a ring in the other, one after the other.
class CopyRing {
 public:
  static absl::StatusOr<CopyRing> Make(Device& device, size_t ring, size_t piece, MemoryKind from) {
    CopyRing made(device, piece);
    RUNAHEAD_ASSIGN_OR_RETURN(BufferRef on_device, RandomMemory(device, ring));
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host, device.Allocate(ring, MemoryKind::kHost));
    made.from_ = on_device;
    made.to_ = BufferRef::Whole(std::move(host));
    // Host memory gets its pages, and contents.
    made.stream_ = device.NewStream("copies");
    RUNAHEAD_RETURN_IF_ERROR(device.Copy(*made.stream_, made.from_, made.to_));
    RUNAHEAD_RETURN_IF_ERROR(device.Record(*made.stream_).Wait());
    if (from == MemoryKind::kHost) std::swap(made.from_, made.to_);
    return made;
  }

  absl::Status EnqueueOne() {
    if (at_ + piece_ > from_.size) at_ = 0;
    RUNAHEAD_RETURN_IF_ERROR(device_->Copy(*stream_, from_.Slice(at_, piece_), to_.Slice(at_, piece_)));
    at_ += piece_;
    return absl::OkStatus();
  }
  Stream& stream() { return *stream_; }
  double bytes() const { return static_cast<double>(piece_); }

 private:
  CopyRing(Device& device, size_t piece) : device_(&device), piece_(piece) {}
  Device* device_;
  size_t piece_;
  BufferRef from_, to_;
  std::unique_ptr<Stream> stream_;
  size_t at_ = 0;
};

// Seconds from now until the event fires.
std::future<double> SecondsUntil(const Event& event, double begin) {
  auto promise = std::make_shared<std::promise<double>>();
  event.OnFire([promise, begin](const absl::Status&) { promise->set_value(SecondsNow() - begin); });
  return promise->get_future();
}

// `count` pieces on each ring's own stream, at once: seconds of each.
absl::StatusOr<std::vector<double>> RunRings(Device& device, std::vector<CopyRing*> rings, int64_t count) {
  const double begin = SecondsNow();
  std::vector<std::future<double>> ends;
  for (int64_t i = 0; i < count; ++i) {
    for (CopyRing* ring : rings) RUNAHEAD_RETURN_IF_ERROR(ring->EnqueueOne());
  }
  for (CopyRing* ring : rings) ends.push_back(SecondsUntil(device.Record(ring->stream()), begin));
  std::vector<double> seconds;
  for (std::future<double>& end : ends) seconds.push_back(end.get());
  return seconds;
}

// A prompt's pass, again and again on one stream.
class Prefill {
 public:
  Prefill(const Bench& bench, const BenchModel& model, int64_t tokens)
      : device_(*bench.device),
        model_(*model.full),
        kv_(device_, model_, tokens),
        memory_(device_),
        batch_(PromptBatch(model.config, tokens)),
        stream_(device_.NewStream("prefill")) {
    kv_.Next(tokens);
  }

  // Seconds of `passes` passes.
  absl::StatusOr<std::future<double>> Start(int64_t passes) {
    const double begin = SecondsNow();
    for (int64_t i = 0; i < passes; ++i) {
      RUNAHEAD_RETURN_IF_ERROR(EnqueuePass(model_, device_, *stream_, memory_, batch_, kv_).status());
    }
    return SecondsUntil(device_.Record(*stream_), begin);
  }
  absl::StatusOr<double> Run(int64_t passes) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::future<double> end, Start(passes));
    return end.get();
  }

 private:
  Device& device_;
  const LlamaModel& model_;
  DenseKv kv_;
  OwnedPassMemory memory_;
  const ForwardBatch batch_;
  const std::unique_ptr<Stream> stream_;
};

Figure FigureOf(int64_t piece, std::string what, double value, std::string unit, const Timing& timing) {
  return {.suite = "handoff",
          .model = "-",
          .shape = piece >= 1 << 20 ? absl::StrCat(piece >> 20, " MiB") : absl::StrCat(piece, " bytes"),
          .what = std::move(what),
          .value = value,
          .unit = std::move(unit),
          .timing = timing};
}

absl::StatusOr<double> BenchRaw(const Bench& bench) {
  const int64_t bytes = bench.Size(kRawBytes);
  RUNAHEAD_ASSIGN_OR_RETURN(CopyRing ring, CopyRing::Make(*bench.device, bytes, bytes, MemoryKind::kDevice));
  const Work copy = [&] { return ring.EnqueueOne(); };
  RUNAHEAD_ASSIGN_OR_RETURN(const Timing timing, TimeAlone(*bench.device, ring.stream(), bench.seconds, copy));
  const double rate = ring.bytes() / timing.median_s;
  bench.report.Add(FigureOf(bytes, "device to host, one raw copy", rate / 1e9, "GB/s", timing));
  return rate;
}

// Both directions at once, which takes two copy engines.
absl::Status BenchDirections(const Bench& bench, int64_t piece, CopyRing& down, double alone, int64_t count) {
  const int64_t ring = bench.Size(kRingBytes);
  RUNAHEAD_ASSIGN_OR_RETURN(CopyRing up, CopyRing::Make(*bench.device, ring, piece, MemoryKind::kHost));
  std::vector<double> downs, ups;
  for (int round = 0; round < kRounds; ++round) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<double> both, RunRings(*bench.device, {&down, &up}, count));
    downs.push_back(both[0] / static_cast<double>(count));
    ups.push_back(both[1] / static_cast<double>(count));
  }
  const Timing out = TimingOf(downs, count), in = TimingOf(ups, count);
  Figure figure = FigureOf(piece, "device to host, both directions", down.bytes() / out.median_s / 1e9, "GB/s", out);
  figure.numbers = {{"share_kept", down.bytes() / out.median_s / alone}};
  bench.report.Add(figure);
  bench.report.Add(FigureOf(piece, "host to device, both directions", up.bytes() / in.median_s / 1e9, "GB/s", in));
  return absl::OkStatus();
}

// Copies that end while prefill still runs show what it leaves them; prefill that ends while copies still run shows
// what they leave it.
absl::Status BenchBeside(const Bench& bench, int64_t piece, CopyRing& ring, double alone, Prefill& prefill) {
  RUNAHEAD_RETURN_IF_ERROR(prefill.Run(2).status());
  RUNAHEAD_ASSIGN_OR_RETURN(const double once, prefill.Run(1));
  const int64_t passes = 1 + static_cast<int64_t>(std::min(bench.seconds, kLeastBeside) / once);
  const double during = once * static_cast<double>(passes) * alone / ring.bytes();
  const int64_t few = std::max<int64_t>(1, static_cast<int64_t>(0.5 * during));
  const int64_t many = 1 + static_cast<int64_t>(1.5 * during);
  std::vector<double> quiet, busy, copies;
  for (int round = 0; round < kRounds; ++round) {
    RUNAHEAD_ASSIGN_OR_RETURN(const double undisturbed, prefill.Run(passes));
    quiet.push_back(undisturbed / static_cast<double>(passes));
    for (const int64_t count : {few, many}) {
      RUNAHEAD_ASSIGN_OR_RETURN(std::future<double> end, prefill.Start(passes));
      RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<double> seconds, RunRings(*bench.device, {&ring}, count));
      const double pass = end.get() / static_cast<double>(passes);
      if (count == few) copies.push_back(seconds[0] / static_cast<double>(few));
      if (count == many) busy.push_back(pass);
    }
  }
  const Timing copy = TimingOf(copies, few), pass = TimingOf(busy, passes), before = TimingOf(quiet, passes);
  Figure beside = FigureOf(piece, "device to host beside prefill", ring.bytes() / copy.median_s / 1e9, "GB/s", copy);
  beside.numbers = {{"share_kept", ring.bytes() / copy.median_s / alone}};
  bench.report.Add(beside);
  Figure slower = FigureOf(piece, "prefill beside copies", pass.median_s / before.median_s, "times", pass);
  slower.numbers = {{"undisturbed_ms", before.median_s * 1e3}};
  slower.note = "as long as undisturbed";
  bench.report.Add(slower);
  return absl::OkStatus();
}

// All bytes of `from` through the lane, as a network that takes no time would have them.
absl::Status Stage(const std::shared_ptr<StagingLane>& lane, const BufferRef& from) {
  std::vector<Event> ends;
  for (size_t at = 0; at < from.size; at += lane->chunk_bytes()) {
    const size_t bytes = std::min(lane->chunk_bytes(), from.size - at);
    const EventSource end;
    ends.push_back(end.event());
    lane->Request(bytes, [lane, end, chunk = from.Slice(at, bytes)](const absl::StatusOr<BufferRef>& room) {
      if (!room.ok()) {
        end.Fire(room.status());
        return;
      }
      lane->Copy(chunk, *room, [end, room = *room](const absl::Status& status) { end.Fire(status); });
    });
  }
  for (const Event& end : ends) RUNAHEAD_RETURN_IF_ERROR(end.Wait());
  return absl::OkStatus();
}

// Slices through hand-off's own staging: room, copy, and the thread that gives and starts them.
absl::Status BenchStaged(const Bench& bench, int64_t piece, double raw) {
  Device& device = *bench.device;
  const int64_t ring = bench.Size(kRingBytes);
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef from, RandomMemory(device, ring));
  const std::shared_ptr<StagingLane> lane = StagingLane::Create(device, "handoff", kStagingBytes);
  const Work push_all = [&]() -> absl::Status {
    for (int64_t at = 0; at + piece <= ring; at += piece) RUNAHEAD_RETURN_IF_ERROR(Stage(lane, from.Slice(at, piece)));
    return absl::OkStatus();
  };
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  const absl::StatusOr<Timing> timed = TimeAlone(device, *stream, bench.seconds, push_all);
  lane->Stop();
  RUNAHEAD_ASSIGN_OR_RETURN(const Timing timing, timed);
  const double rate = static_cast<double>(ring / piece * piece) / timing.median_s;
  Figure figure = FigureOf(piece, "device to host through hand-off", rate / 1e9, "GB/s", timing);
  figure.numbers = {{"share_of_raw", rate / raw}};
  bench.report.Add(figure);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchHandoff(const Bench& bench) {
  RUNAHEAD_ASSIGN_OR_RETURN(const double raw, BenchRaw(bench));
  RUNAHEAD_ASSIGN_OR_RETURN(const BenchModel model, MakeBenchModel(bench, BenchModels(bench).back()));
  Prefill prefill(bench, model, bench.Size(8192));
  for (const int64_t size : {1 << 20, 8 << 20, 64 << 20}) {
    const int64_t piece = bench.Size(size);
    RUNAHEAD_ASSIGN_OR_RETURN(CopyRing ring,
                              CopyRing::Make(*bench.device, bench.Size(kRingBytes), piece, MemoryKind::kDevice));
    const Work copy = [&] { return ring.EnqueueOne(); };
    RUNAHEAD_ASSIGN_OR_RETURN(const Timing timing, TimeAlone(*bench.device, ring.stream(), bench.seconds, copy));
    const double alone = ring.bytes() / timing.median_s;
    Figure figure = FigureOf(piece, "device to host alone", alone / 1e9, "GB/s", timing);
    figure.numbers = {{"share_of_raw", alone / raw}};
    bench.report.Add(figure);
    RUNAHEAD_RETURN_IF_ERROR(BenchStaged(bench, piece, raw));
    const int64_t count = 1 + static_cast<int64_t>(std::min(bench.seconds, kLeastBeside) / timing.median_s);
    RUNAHEAD_RETURN_IF_ERROR(BenchDirections(bench, piece, ring, alone, count));
    RUNAHEAD_RETURN_IF_ERROR(BenchBeside(bench, piece, ring, alone, prefill));
  }
  return absl::OkStatus();
}

}  // namespace runahead
