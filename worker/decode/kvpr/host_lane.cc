#include "worker/decode/kvpr/host_lane.h"

#include <algorithm>
#include <utility>

#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

bool HasHostPart(const LaneCuts& cuts) {
  return cuts.streamed_end < cuts.host_end;
}

// The sequences' parts of the lane where the store has them.
KvLayout HostLayout(const PlannedStep& step) {
  KvLayout layout{.page_tokens = kKvBlockTokens, .pages = {}, .sequences = {}, .by_pieces = true};
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    KvSequence sequence{.queries = step.sequences[i].rows, .length = step.sequences[i].length};
    if (const LaneCuts& cuts = step.plan.cuts[i]; HasHostPart(cuts)) {
      sequence.first_page = static_cast<int64_t>(layout.pages.size());
      sequence.begin = cuts.streamed_end;
      sequence.end = cuts.host_end;
      const std::vector<int32_t>& blocks = step.stored[i].blocks;
      layout.pages.insert(layout.pages.end(), blocks.begin() + sequence.begin / kKvBlockTokens,
                          blocks.begin() + KvBlocksFor(sequence.end));
    }
    layout.sequences.push_back(sequence);
  }
  return layout;
}

}  // namespace

HostLane::HostLane(const Model& model, Device& device, Device& host, const KvStore& store, double emulated_gbps)
    : model_(model),
      device_(device),
      host_(host),
      store_(store),
      link_stream_(device.NewStream("kvpr host lane")),
      host_stream_(host.NewStream("kvpr host lane")),
      attention_{host_, *host_stream_, emulated_gbps} {}

HostLane::~HostLane() {
  Settle();
}

absl::Status HostLane::BeginStep(const PlannedStep& step) {
  times_ = step.times;
  queries_.clear();
  pieces_.clear();
  int64_t first_piece = 0;  // of the query row
  int32_t query = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const LaneCuts& cuts = step.plan.cuts[i];
    const StepSequence& of = step.sequences[i];
    for (int64_t length = of.first_new() + 1; length <= of.length; ++length, ++query) {
      if (HasHostPart(cuts)) {
        queries_.push_back({query, query});
        const int64_t piece = PieceTokens(length);
        for (int64_t at = cuts.streamed_end; at < cuts.host_end; at += piece) {
          const auto row = static_cast<int32_t>(first_piece + at / piece);
          pieces_.push_back({row, row});
        }
      }
      first_piece += PieceCount(length);
    }
  }
  if (!has_work()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(table_, host_.MakeKvTable(*host_stream_, HostLayout(step)));
  return absl::OkStatus();
}

absl::StatusOr<BufferRef> HostLane::Room(BufferRef& kept, int64_t bytes) {
  if (static_cast<int64_t>(kept.size) < bytes) {
    Settle();
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                              device_.Allocate(static_cast<size_t>(bytes), MemoryKind::kHost));
    kept = BufferRef::Whole(std::move(memory));
  }
  return kept.Slice(0, static_cast<size_t>(bytes));
}

absl::Status HostLane::Start(int64_t layer, const ConstTensor& q, const Event& filled, const Event& written) {
  attended_.Wait().IgnoreError();  // a step that failed may have left it
  const AttentionShape& shape = model_.attention(layer);
  const auto row_bytes = q.cols * static_cast<int64_t>(DTypeSize(q.dtype));
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef q_there, Room(q_memory_, q.rows * row_bytes));
  const Tensor q_on_host = MakeTensor(q_there, q.dtype, q.rows, q.cols);
  const int64_t cols = shape.heads * (shape.head_dim + 1);
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef made, Room(partials_memory_, table_->pieces() * cols * 4));
  partials_ = MakeTensor(made, DType::kF32, table_->pieces(), cols);

  device_.WaitFor(*link_stream_, filled);
  {
    const LaneSpan span(device_, *link_stream_, times_, StepLane::kSignal, layer);
    RUNAHEAD_RETURN_IF_ERROR(device_.ExchangeRows(*link_stream_, q, queries_, q_on_host));
  }
  host_.WaitFor(*host_stream_, device_.Record(*link_stream_));
  host_.WaitFor(*host_stream_, written);
  {
    const LaneSpan span(host_, *host_stream_, times_, StepLane::kHost, layer);
    RUNAHEAD_RETURN_IF_ERROR(attention_.Enqueue(q_on_host, shape, *table_, store_.arena().Layer(layer), partials_));
  }
  attended_ = host_.Record(*host_stream_);
  return absl::OkStatus();
}

// The thread waits, not a stream of the device: a stream that waits for the host can keep a GPU's driver from taking
// the very calls by which the host goes on.
absl::StatusOr<Event> HostLane::Finish(int64_t layer, const MutTensor& partials) {
  RUNAHEAD_RETURN_IF_ERROR(attended_.Wait());
  {
    const LaneSpan span(device_, *link_stream_, times_, StepLane::kSignal, layer);
    RUNAHEAD_RETURN_IF_ERROR(device_.ExchangeRows(*link_stream_, partials_, pieces_, partials));
  }
  return device_.Record(*link_stream_);
}

void HostLane::Settle() {
  host_.Record(*host_stream_).Wait().IgnoreError();
  device_.Record(*link_stream_).Wait().IgnoreError();
}

}  // namespace runahead
