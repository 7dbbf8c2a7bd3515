#include "worker/decode/kvpr/profile.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/shortest_time.h"
#include "worker/decode/kvpr/step_chunks.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/model/layer_pass.h"

namespace runahead {
namespace {

// From blocks that a CPU's caches hold to what a chunk of a large model is.
constexpr int64_t kBlockSizes[] = {64 << 10, 1 << 20, 16 << 20};
// Larger blocks say nothing more once one takes so long.
constexpr double kLongCopy = 0.02;
constexpr int kTimed = 4;
// Beside what takes so long it does not matter what enqueueing and waiting take, some tens of microseconds.
constexpr double kLong = 0.005;
// Enqueueing and waiting take less where nothing else runs.
constexpr double kMostBeside = 200e-6;
// Launches at a time are as many as take about so long.
constexpr double kAtATime = 200e-6;
constexpr int kMostAtATime = 32;
// More than a GPU's caches hold, of large models.
constexpr int64_t kAttended = 1024, kAttendedSequences = 4;
constexpr int64_t kZeroBytes = 4 << 20;

// A link is measured again with blocks up to this size, so many times.
constexpr int64_t kLookBytes = 1 << 20;
constexpr int kLooks = 2;

// Measures on one stream.
class LaneMeter {
 public:
  LaneMeter(const Model& model, Device& device, const LaneProfileOptions& options)
      : model_(model),
        device_(device),
        options_(options),
        stream_(device.NewStream("profile")),
        own_(device),
        shared_(device) {}

  absl::StatusOr<LaneProfile> Measure() {
    LaneProfile profile;
    RUNAHEAD_RETURN_IF_ERROR(MeasureLink(std::numeric_limits<int64_t>::max(), kTimed, profile));
    RUNAHEAD_RETURN_IF_ERROR(FetchWeights());
    LaneCosts& costs = profile.costs;
    costs.link_bytes_per_s = profile.link.back().to_device;
    costs.kv_bytes = static_cast<double>(options_.stored_row_bytes);
    if (weights_ != nullptr) costs.other_link_bytes = StreamedLayerBytes(model_);
    costs.x_bytes = options_.x_row_bytes > 0 ? static_cast<double>(options_.x_row_bytes) : costs.kv_bytes;
    RUNAHEAD_ASSIGN_OR_RETURN(costs.project_s, ProjectSeconds());
    RUNAHEAD_ASSIGN_OR_RETURN(costs.attend_s, AttendSeconds());
    if (options_.x_row_bytes > 0) {
      RUNAHEAD_ASSIGN_OR_RETURN(costs.recompute_s, RecomputeSeconds());
    }
    return profile;
  }

  // Of blocks of at most so many bytes.
  absl::Status MeasureLink(int64_t most_bytes, int runs, LaneProfile& profile) {
    for (const int64_t bytes : kBlockSizes) {
      // On a device that is nearly full the smaller blocks must do.
      const bool small = !profile.link.empty() && device_.memory_left() < static_cast<size_t>(bytes);
      if (small || bytes > most_bytes) break;
      RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef host, Memory(bytes, MemoryKind::kHost));
      RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef there, Memory(bytes, MemoryKind::kDevice));
      const auto time = [&](const BufferRef& from, const BufferRef& to) {
        return Time([&] { return device_.Copy(*stream_, from, to); }, runs);
      };
      if (profile.link.empty()) {
        RUNAHEAD_ASSIGN_OR_RETURN(
            profile.copy_latency_s,
            Alone([&] { return device_.Copy(*stream_, host.Slice(0, 64), there.Slice(0, 64)); }, 1, runs));
        most_beside_s_ = std::min(profile.copy_latency_s, kMostBeside);
      }
      RUNAHEAD_ASSIGN_OR_RETURN(const double to, time(host, there));
      RUNAHEAD_ASSIGN_OR_RETURN(const double back, time(there, host));
      profile.link.push_back({bytes, static_cast<double>(bytes) / to, static_cast<double>(bytes) / back});
      if (to > kLongCopy) break;
    }
    return absl::OkStatus();
  }

 private:
  // Of `times` launches at a time, until the thread knows that they are done.
  absl::StatusOr<double> Alone(const std::function<absl::Status()>& enqueue, int times, int runs) {
    RUNAHEAD_RETURN_IF_ERROR(device_.Record(*stream_).Wait());
    return ShortestTime(
        runs,
        [&]() -> absl::Status {
          for (int i = 0; i < times; ++i) RUNAHEAD_RETURN_IF_ERROR(enqueue());
          return device_.Record(*stream_).Wait();
        },
        options_.now);
  }
  // Of one launch on the device. Looks at both numbers of launches by turns, for a busy machine makes either longer.
  // Where all looks at the smaller one were disturbed, their difference is too small: what is no launch's takes no
  // longer than a copy of a few bytes, from enqueueing to knowing.
  absl::StatusOr<double> Time(const std::function<absl::Status()>& enqueue, int runs = kTimed) {
    RUNAHEAD_ASSIGN_OR_RETURN(const double first, Alone(enqueue, 1, 2));
    if (first > kLong) return runs > 2 ? Alone(enqueue, 1, runs - 2) : first;
    const int times = std::clamp(static_cast<int>(kAtATime / first), 1, kMostAtATime);
    double once = std::numeric_limits<double>::infinity(), twice = once;
    for (int run = 0; run < runs; ++run) {
      RUNAHEAD_ASSIGN_OR_RETURN(const double some, Alone(enqueue, times, 1));
      RUNAHEAD_ASSIGN_OR_RETURN(const double more, Alone(enqueue, 2 * times, 1));
      once = std::min(once, some);
      twice = std::min(twice, more);
    }
    const double least = std::max((twice - most_beside_s_) / 2, 1e-9);
    return std::clamp(twice - once, std::min(least, twice / 2), twice / 2) / times;
  }

  absl::StatusOr<BufferRef> Memory(int64_t bytes, MemoryKind kind) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, device_.Allocate(static_cast<size_t>(bytes), kind));
    if (kind == MemoryKind::kHost) std::memset(memory->data(), 0, memory->size());
    return BufferRef::Whole(std::move(memory));
  }
  // Zeros: what lies in fresh memory may be numbers that take a CPU longer.
  absl::StatusOr<BufferRef> Zeros(int64_t bytes) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef host, Memory(std::min(bytes, kZeroBytes), MemoryKind::kHost));
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef zeros, Memory(bytes, MemoryKind::kDevice));
    for (size_t at = 0; at < zeros.size; at += host.size) {
      const size_t size = std::min(host.size, zeros.size - at);
      RUNAHEAD_RETURN_IF_ERROR(device_.Copy(*stream_, host.Slice(0, size), zeros.Slice(at, size)));
    }
    return zeros;
  }
  // As many of `wanted`, of so many bytes of device memory each, as half of what is left holds; one at least.
  int64_t Fitting(int64_t wanted, int64_t bytes) const {
    const double room = static_cast<double>(device_.memory_left()) / 2 / static_cast<double>(bytes);
    return std::max<int64_t>(1, room < static_cast<double>(wanted) ? static_cast<int64_t>(room) : wanted);
  }

  // Those of layer 0 to the device, where they are streamed: what is measured is the time with weights there.
  absl::Status FetchWeights() {
    if (!model_.streams_weights()) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(weights_, WeightStream::Create(model_, device_));
    RUNAHEAD_RETURN_IF_ERROR(weights_->Load(0, nullptr));
    matrices_ = weights_->At(0).matrices;
    return weights_->At(0).all_there.Wait();
  }

  // Projections, attention over one position and the MLP of one layer, and its share of embedding and head.
  absl::StatusOr<double> ProjectSeconds() {
    const ModelConfig& config = model_.config();
    ForwardBatch batch;
    batch.batch_invariant = true;
    batch.kv.page_tokens = 1;
    batch.ids.assign(static_cast<size_t>(options_.rows), 0);
    for (int64_t row = 0; row < options_.rows; ++row) {
      batch.logit_rows.push_back(row);
      batch.kv.pages.push_back(static_cast<int32_t>(row));
      batch.kv.sequences.push_back({.queries = 1, .length = 1, .first_page = row, .end = 1});
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef kv, Zeros(options_.rows * model_.kv_row_bytes()));
    const KvLayout layout = batch.kv;
    const int64_t columns = (config.heads + 2 * config.kv_heads) * config.head_dim;
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef qkv_memory, Zeros(options_.rows * columns * 4));
    const Tensor qkv = MakeTensor(qkv_memory, DType::kF32, options_.rows, columns);
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const KvTable> table, device_.MakeKvTable(*stream_, layout));
    const auto pass_of = [&](bool with_layer) -> absl::Status {
      LayerPass pass(model_, device_, *stream_, {own_, shared_}, batch);
      pass.UseMatrices(matrices_);
      RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
      if (with_layer) {
        RUNAHEAD_RETURN_IF_ERROR(pass.ProjectQkv(0, qkv, {}));
        RUNAHEAD_RETURN_IF_ERROR(device_.StoreQkv(*stream_, qkv, model_.attention(0), pass.q(), *table, 0, kv));
        RUNAHEAD_RETURN_IF_ERROR(pass.AttendPieces(0, *table, kv));
        RUNAHEAD_RETURN_IF_ERROR(pass.Finish(0));
      }
      return pass.Logits().status();
    };
    RUNAHEAD_ASSIGN_OR_RETURN(const double with_layer, Time([&] { return pass_of(true); }));
    RUNAHEAD_ASSIGN_OR_RETURN(const double without, Time([&] { return pass_of(false); }));
    return std::max(0.0, with_layer - without) + without / static_cast<double>(config.layers);
  }

  // Of one position.
  absl::StatusOr<double> AttendSeconds() {
    const AttentionShape& shape = model_.attention(0);
    const DType act = ActivationDType(device_, true);
    const int64_t q_cols = shape.heads * shape.head_dim;
    const int64_t sequences = Fitting(kAttendedSequences, kAttended * model_.kv_row_bytes());
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef kv, Zeros(sequences * kAttended * model_.kv_row_bytes()));
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef q_memory,
                              Zeros(sequences * q_cols * static_cast<int64_t>(DTypeSize(act))));
    KvLayout layout{.page_tokens = kAttended, .pages = {}, .sequences = {}};
    for (int64_t i = 0; i < sequences; ++i) {
      layout.pages.push_back(static_cast<int32_t>(i));
      layout.sequences.push_back({.queries = 1, .length = kAttended, .first_page = i, .end = kAttended});
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const KvTable> table, device_.MakeKvTable(*stream_, layout));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor partials,
                              own_.Get(0, DType::kF32, table->pieces(), shape.heads * (shape.head_dim + 1)));
    RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, Time([&] {
                                return device_.AttendPieces(*stream_, MakeTensor(q_memory, act, sequences, q_cols),
                                                            shape, *table, kv, partials);
                              }));
    return seconds / static_cast<double>(sequences * kAttended);
  }

  // Of one position.
  absl::StatusOr<double> RecomputeSeconds() {
    const int64_t context = model_.config().context_length, block = std::min(kRecomputeBlock, context);
    const int64_t kept_row = options_.kv_quant.has_value() ? options_.stored_row_bytes : 0;
    const int64_t count = Fitting(std::max<int64_t>(1, std::min(device_.gemm_rows(), context) / block),
                                  block * (options_.x_row_bytes + model_.kv_row_bytes() + kept_row));
    const int64_t rows = count * block;
    const std::vector<int32_t> blocks(static_cast<size_t>(count), static_cast<int32_t>(block));
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef x, Zeros(rows * options_.x_row_bytes));
    RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef kv, Zeros(rows * model_.kv_row_bytes()));
    BufferRef kept;  // KV as the store has it, where that is quantised
    if (kept_row > 0) {
      RUNAHEAD_ASSIGN_OR_RETURN(kept, Zeros(rows * kept_row));
    }
    const XRows stored{x, options_.x_form, model_.config().hidden};
    const bool quantised = IsQuantised(stored.form);
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor read, quantised ? own_.Get(0, device_.compute_dtype(), rows, stored.hidden)
                                                           : absl::StatusOr<Tensor>(stored.tensor(rows)));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const KvTable> table,
                              device_.MakeKvTable(*stream_, KvLayout::OnePage(rows, rows)));
    RUNAHEAD_ASSIGN_OR_RETURN(
        const double seconds, Time([&]() -> absl::Status {
          if (quantised) {
            RUNAHEAD_RETURN_IF_ERROR(device_.DequantizeKv(*stream_, x, QuantOf(stored.form), read));
          }
          RUNAHEAD_RETURN_IF_ERROR(model_.Recompute({.stream = *stream_,
                                                     .scratch = shared_,
                                                     .table = *table,
                                                     .count = rows,
                                                     .matrices = matrices_,
                                                     .blocks = blocks},
                                                    0, read, kv));
          if (!options_.kv_quant.has_value()) return absl::OkStatus();
          const Tensor made = MakeTensor(kv, model_.kv_dtype(), rows, 2 * model_.config().kv_dim());
          RUNAHEAD_RETURN_IF_ERROR(device_.QuantizeKv(*stream_, made, *options_.kv_quant, kept));
          return device_.DequantizeKv(*stream_, kept, *options_.kv_quant, made);
        }));
    return seconds / static_cast<double>(rows);
  }

  const Model& model_;
  Device& device_;
  const LaneProfileOptions options_;
  const std::unique_ptr<Stream> stream_;
  // What enqueueing a launch and waiting for it take beside the launch, at most.
  double most_beside_s_ = kMostBeside;
  ForwardScratch own_, shared_;
  std::unique_ptr<WeightStream> weights_;  // null: the model's weights are resident
  LayerMatrices matrices_;                 // of layer 0, where they are streamed
};

}  // namespace

absl::StatusOr<LaneProfile> MeasureLanes(const Model& model, Device& device, const LaneProfileOptions& options) {
  return LaneMeter(model, device, options).Measure();
}

absl::Status MeasureLinkAgain(const Model& model, Device& device, LaneProfile& profile) {
  LaneProfile now;
  RUNAHEAD_RETURN_IF_ERROR(LaneMeter(model, device, {}).MeasureLink(kLookBytes, kLooks, now));
  // The sizes are the same, the smallest first; how many of them a link is measured with depends on its rate.
  now.link.resize(std::min(now.link.size(), profile.link.size()));
  const LinkRate &before = profile.link[now.link.size() - 1], &after = now.link.back();
  const double to = after.to_device / before.to_device, back = after.to_host / before.to_host;
  for (size_t i = 0; i < profile.link.size(); ++i) {
    LinkRate& rate = profile.link[i];
    rate = i < now.link.size() ? now.link[i] : LinkRate{rate.block_bytes, to * rate.to_device, back * rate.to_host};
  }
  profile.copy_latency_s = now.copy_latency_s;
  profile.costs.link_bytes_per_s *= to;
  return absl::OkStatus();
}

}  // namespace runahead
