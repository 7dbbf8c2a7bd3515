#include "worker/decode/kvpr/weight_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/copy_pieces.h"

namespace runahead {
namespace {

// Of a matrix in its slot: what GPUs place allocations at, and their fastest products want.
constexpr size_t kAlignment = 256;

size_t SlotBytes(LayerMatrices matrices) {
  size_t bytes = 0;
  for (const auto& matrix : matrices) bytes += (matrix->home().size + kAlignment - 1) / kAlignment * kAlignment;
  return bytes;
}

size_t LargestSlot(const Model& model) {
  size_t largest = 0;
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    largest = std::max(largest, SlotBytes(model.Matrices(layer)));
  }
  return largest;
}

}  // namespace

double StreamedLayerBytes(const Model& model) {
  double bytes = 0;
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    for (const auto& matrix : model.Matrices(layer)) bytes += static_cast<double>(matrix->home().size);
  }
  return bytes / static_cast<double>(model.config().layers);
}

int64_t WeightStream::DeviceBytes(const Model& model) {
  return model.streams_weights() ? static_cast<int64_t>(2 * LargestSlot(model)) : 0;
}

absl::StatusOr<std::unique_ptr<WeightStream>> WeightStream::Create(const Model& model, Device& device) {
  const size_t bytes = LargestSlot(model);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, device.Allocate(2 * bytes, MemoryKind::kDevice));
  std::unique_ptr<WeightStream> weights(new WeightStream(model, device));
  for (size_t i = 0; i < weights->slots_.size(); ++i) weights->slots_[i].memory = {memory, i * bytes, bytes};
  return weights;
}

WeightStream::WeightStream(const Model& model, Device& device)
    : model_(model), device_(device), stream_(device.NewStream("kvpr weights")) {}

absl::Status WeightStream::Load(int64_t layer, const std::shared_ptr<StepTimes>& times) {
  if (Find(layer) != nullptr) return absl::OkStatus();
  Slot& slot = slots_[turn_];
  slot.number = -1;
  device_.WaitFor(*stream_, slot.free);
  const LaneSpan span(device_, *stream_, times, StepLane::kWeights, layer);
  RUNAHEAD_RETURN_IF_ERROR(Fill(slot, model_.Matrices(layer)));
  slot.number = layer;
  turn_ = 1 - turn_;
  return absl::OkStatus();
}

// Recomputation is what can begin first, even before the layer: so K's and V's rows of the first matrix come first.
absl::Status WeightStream::Fill(Slot& slot, LayerMatrices matrices) {
  const ModelConfig& config = model_.config();
  slot.layer.matrices.clear();
  size_t at = 0;
  for (const auto& matrix : matrices) {
    const ConstBufferRef& home = matrix->home();
    const BufferRef there = slot.memory.Slice(at, home.size);
    RUNAHEAD_ASSIGN_OR_RETURN(slot.layer.matrices.emplace_back(), device_.WeightsAt(*matrix, there));
    if (at == 0) {
      const ConstBufferRef kv = matrix->HomeFrom(config.heads * config.head_dim);
      const auto begin = static_cast<size_t>(kv.data() - home.data());
      RUNAHEAD_RETURN_IF_ERROR(Bring(home, begin, begin + kv.size, there));
      slot.layer.kv_there = device_.Record(*stream_);
      RUNAHEAD_RETURN_IF_ERROR(Bring(home, 0, begin, there));
      RUNAHEAD_RETURN_IF_ERROR(Bring(home, begin + kv.size, home.size, there));
      slot.layer.qkv_there = device_.Record(*stream_);
    } else {
      RUNAHEAD_RETURN_IF_ERROR(Bring(home, 0, home.size, there));
    }
    at += (home.size + kAlignment - 1) / kAlignment * kAlignment;
  }
  slot.layer.all_there = device_.Record(*stream_);
  return absl::OkStatus();
}

absl::Status WeightStream::Bring(const ConstBufferRef& home, size_t begin, size_t end, const BufferRef& there) {
  const size_t bytes = end - begin;
  std::vector<CopyPart> parts;
  AddPieces(home.Slice(begin, bytes), there.Slice(begin, bytes), kWeightPieceBytes, parts);
  return device_.CopyAll(*stream_, std::move(parts));
}

WeightStream::Slot* WeightStream::Find(int64_t layer) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.number == layer; });
  return slot == slots_.end() ? nullptr : &*slot;
}

const WeightStream::Layer& WeightStream::At(int64_t layer) const {
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.number == layer; });
  RUNAHEAD_CHECK(slot != slots_.end());
  return slot->layer;
}

void WeightStream::Release(int64_t layer, const Event& free) {
  Slot* const slot = Find(layer);
  RUNAHEAD_CHECK(slot != nullptr);
  slot->free = free;
}

void WeightStream::ReleaseAll(const Event& free) {
  for (Slot& slot : slots_) slot.free = free;
}

}  // namespace runahead
