// Weights whose homes are in host memory, on their way through the device: two slots of device memory, a layer each,
// and the stream that fills them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/decode/kvpr/step_times.h"
#include "worker/model/model.h"

namespace runahead {

// Of a model that streams its weights: bytes of a layer's homes, the mean over the layers.
double StreamedLayerBytes(const Model& model);

// Load the layers in turn, round and round, each while the one before computes; Release each once it has. Used by the
// decode loop's thread.
class WeightStream {
 public:
  // Bytes of device memory that it takes: twice the largest layer. 0 where the model does not stream its weights.
  static int64_t DeviceBytes(const Model& model);
  // Model and device outlive it. The model streams its weights. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<WeightStream>> Create(const Model& model, Device& device);

  // A layer on its way, or there: its matrices, in the order of Model::Matrices, where they lie in the slot.
  struct Layer {
    std::vector<std::shared_ptr<const Weights>> matrices;
    Event kv_there;   // what recomputation reads of the first matrix: K's and V's rows
    Event qkv_there;  // the first matrix
    Event all_there;
  };
  // Enqueues the copies of `layer`, unless a slot has it: into the slot whose layer was loaded longer ago, once that is
  // free. `times` may be null.
  absl::Status Load(int64_t layer, const std::shared_ptr<StepTimes>& times);
  // One of the two layers that were loaded last; it stays where it is until the Load of another one takes its slot.
  const Layer& At(int64_t layer) const;
  // From `free` on the slot of `layer` may be filled again.
  void Release(int64_t layer, const Event& free);
  // The same of both slots, behind whatever uses them: after a step that failed.
  void ReleaseAll(const Event& free);

 private:
  struct Slot {
    BufferRef memory;
    int64_t number = -1;  // of its layer; none
    Layer layer;
    Event free;
  };

  WeightStream(const Model& model, Device& device);
  Slot* Find(int64_t layer);
  absl::Status Fill(Slot& slot, LayerMatrices matrices);
  // Enqueues the copies of `home`'s bytes [begin, end) to the same place in `there`.
  absl::Status Bring(const ConstBufferRef& home, size_t begin, size_t end, const BufferRef& there);

  const Model& model_;
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  std::array<Slot, 2> slots_;
  size_t turn_ = 0;  // the slot that is filled next
};

}  // namespace runahead
