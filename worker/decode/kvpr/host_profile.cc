#include "worker/decode/kvpr/host_profile.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/shortest_time.h"

namespace runahead {
namespace {

// More than caches hold.
constexpr int64_t kAttendedBytes = 48 << 20;
// As copies come that run beside: small enough to count how many ran meanwhile.
constexpr int64_t kCopiedBytes = 256 << 10;
// Copies and host lane disturb each other where together they reach less than this share of what each reaches alone.
constexpr double kUndisturbed = 0.9;

class HostMeter {
 public:
  HostMeter(const Model& model, Device& device, const HostAttention& attention, int runs)
      : shape_(model.attention(0)),
        positions_(
            std::max(kSmallestPiece, std::min(kAttendedBytes / shape_.kv_row_bytes(), model.config().context_length))),
        q_dtype_(ActivationDType(device, true)),
        runs_(runs),
        device_(device),
        attention_(attention),
        device_stream_(device.NewStream("profile")) {}

  absl::Status Prepare() {
    const int64_t q_cols = shape_.heads * shape_.head_dim;
    RUNAHEAD_ASSIGN_OR_RETURN(kv_, Memory(positions_ * shape_.kv_row_bytes(), MemoryKind::kHost));
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef q,
                              Memory(q_cols * static_cast<int64_t>(DTypeSize(q_dtype_)), MemoryKind::kHost));
    q_ = MakeTensor(q, q_dtype_, 1, q_cols);
    RUNAHEAD_ASSIGN_OR_RETURN(table_, attention_.host.MakeKvTable(attention_.stream, KvLayout::OnePage(1, positions_)));
    const int64_t cols = shape_.heads * (shape_.head_dim + 1);
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef made, Memory(table_->pieces() * cols * 4, MemoryKind::kHost));
    partials_ = MakeTensor(made, DType::kF32, table_->pieces(), cols);
    RUNAHEAD_ASSIGN_OR_RETURN(there_, Memory(std::max<int64_t>(kCopiedBytes, cols * 4), MemoryKind::kDevice));
    return absl::OkStatus();
  }

  // The way of one query's row there, and of one piece back.
  absl::StatusOr<double> SignalSeconds() {
    const Tensor q_there = MakeTensor(there_.Slice(0, q_.ref.size), q_.dtype, 1, q_.cols);
    const Tensor piece = partials_.Rows(0, 1);
    const Tensor piece_there = MakeTensor(there_.Slice(0, piece.ref.size), piece.dtype, 1, piece.cols);
    return ShortestTime(runs_, [&]() -> absl::Status {
      RUNAHEAD_RETURN_IF_ERROR(device_.ExchangeRows(*device_stream_, q_there, {{0, 0}}, q_));
      RUNAHEAD_RETURN_IF_ERROR(device_.Record(*device_stream_).Wait());
      RUNAHEAD_RETURN_IF_ERROR(device_.ExchangeRows(*device_stream_, piece, {{0, 0}}, piece_there));
      return device_.Record(*device_stream_).Wait();
    });
  }

  // Of all positions.
  absl::StatusOr<double> AttendSeconds() {
    return ShortestTime(runs_, [&]() -> absl::Status {
      RUNAHEAD_RETURN_IF_ERROR(attention_.Enqueue(q_, shape_, *table_, kv_, partials_));
      return attention_.host.Record(attention_.stream).Wait();
    });
  }

  // Copies run for as long as attention does; `alone_s` is what that takes alone.
  absl::StatusOr<SharedRun> RunTogether(double alone_s, double link_bytes_per_s) {
    // Three times as many copies as fit, so that they do not end before.
    const int64_t one_copy = std::min(kCopiedBytes, static_cast<int64_t>(kv_.size));  // small models have less
    const auto count = static_cast<int64_t>(3 * alone_s * link_bytes_per_s / static_cast<double>(one_copy)) + 2;
    const auto copied = std::make_shared<std::atomic<int64_t>>(0);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i * one_copy % (static_cast<int64_t>(kv_.size) - one_copy + 1));
      const auto size = static_cast<size_t>(one_copy);
      RUNAHEAD_RETURN_IF_ERROR(device_.Copy(*device_stream_, kv_.Slice(at, size), there_.Slice(0, size)));
      device_.Call(*device_stream_, [copied, one_copy] { copied->fetch_add(one_copy); });
    }
    const int64_t before = copied->load();
    const absl::Time begin = MonotonicNow();
    RUNAHEAD_RETURN_IF_ERROR(attention_.Enqueue(q_, shape_, *table_, kv_, partials_));
    RUNAHEAD_RETURN_IF_ERROR(attention_.host.Record(attention_.stream).Wait());
    const double seconds = std::max(1e-9, absl::ToDoubleSeconds(MonotonicNow() - begin));
    const int64_t meanwhile = copied->load() - before;
    RUNAHEAD_RETURN_IF_ERROR(device_.Record(*device_stream_).Wait());
    return SharedRun{bytes(), static_cast<double>(meanwhile), seconds};
  }

  int64_t positions() const { return positions_; }
  double bytes() const { return static_cast<double>(positions_ * shape_.kv_row_bytes()); }

 private:
  absl::StatusOr<BufferRef> Memory(int64_t bytes, MemoryKind kind) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, device_.Allocate(static_cast<size_t>(bytes), kind));
    if (kind == MemoryKind::kHost) std::memset(memory->data(), 0, memory->size());
    return BufferRef::Whole(std::move(memory));
  }

  const AttentionShape shape_;
  const int64_t positions_;
  const DType q_dtype_;
  const int runs_;
  Device& device_;
  const HostAttention attention_;
  const std::unique_ptr<Stream> device_stream_;
  BufferRef kv_, there_;
  Tensor q_, partials_;
  std::shared_ptr<const KvTable> table_;
};

}  // namespace

double SharedBytesPerSecond(const SharedRun& together, double attend_bytes_per_s, double link_bytes_per_s) {
  const double shared = (together.attended_bytes + together.copied_bytes) / together.seconds;
  const bool undisturbed = shared >= kUndisturbed * (attend_bytes_per_s + link_bytes_per_s);
  return undisturbed ? std::numeric_limits<double>::infinity() : shared;
}

absl::Status MeasureHostLane(const Model& model, Device& device, const HostAttention& attention, LaneCosts& costs,
                             int runs) {
  HostMeter meter(model, device, attention, runs);
  LaneCosts now = costs;
  RUNAHEAD_RETURN_IF_ERROR(meter.Prepare());
  RUNAHEAD_ASSIGN_OR_RETURN(now.signal_s, meter.SignalSeconds());
  RUNAHEAD_ASSIGN_OR_RETURN(const double alone_s, meter.AttendSeconds());
  now.host_attend_s = alone_s / static_cast<double>(meter.positions());
  RUNAHEAD_ASSIGN_OR_RETURN(const SharedRun together, meter.RunTogether(alone_s, costs.link_bytes_per_s));
  now.host_bytes_per_s = SharedBytesPerSecond(together, meter.bytes() / alone_s, costs.link_bytes_per_s);
  costs = now;
  return absl::OkStatus();
}

}  // namespace runahead
