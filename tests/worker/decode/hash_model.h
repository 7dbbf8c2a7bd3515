// A model without arithmetic: the logits of a row are a hash of all KV rows that the port shows it, so a wrong, missing
// or foreign row of any layer changes the tokens. What it must say is known from the ids alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "worker/kv/store.h"
#include "worker/model/model.h"

namespace runahead::testing {

class HashModel final : public Model {
 public:
  static constexpr int64_t kLayers = 3;
  static constexpr int64_t kVocab = 61;
  static constexpr int32_t kPoison = 60;  // as an input token it makes the logits NaN

  explicit HashModel(Device& device) : device_(device) {
    config_.layers = kLayers;
    config_.vocab = kVocab;
    config_.context_length = 2000;
    shape_ = {1, 1, 2, DType::kF32, 1.0f};
  }

  // Called on the thread that runs a pass, before it; set it before the model is used.
  std::function<void(const ForwardBatch&)> on_forward;
  // Passes fail where this says so, once their first layers have been enqueued: what they wrote there stays.
  std::function<absl::Status(const ForwardBatch&)> fail;

  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention_shape() const override { return shape_; }

  absl::StatusOr<Tensor> Forward(Stream& stream, ForwardScratch& scratch, const ForwardBatch& batch,
                                 KvPort& port) const override {
    if (on_forward) on_forward(batch);
    RUNAHEAD_CHECK(batch.batch_invariant);
    const int64_t rows = static_cast<int64_t>(batch.ids.size());
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, scratch.Get(0, DType::kF32, rows, kVocab));
    std::vector<std::vector<AttentionSequence>> seen;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      RUNAHEAD_RETURN_IF_ERROR(port.Begin(layer));
      RUNAHEAD_ASSIGN_OR_RETURN(std::vector<KvSpan> own, port.Own(layer));
      device_.Call(stream, [own, batch, layer] {
        for (size_t row = 0; row < batch.ids.size(); ++row) {
          WriteRow(own[row].rows.data(), layer, batch.positions[row], batch.ids[row]);
        }
      });
      RUNAHEAD_ASSIGN_OR_RETURN(std::vector<AttentionSequence> sequences, port.Publish(layer, stream));
      seen.push_back(std::move(sequences));
      if (fail && layer == 1) RUNAHEAD_RETURN_IF_ERROR(fail(batch));
    }
    device_.Call(stream, [logits, seen, batch, rows] {
      for (int64_t row = 0; row < rows; ++row) {
        uint64_t hash = 0;
        for (const std::vector<AttentionSequence>& layer : seen) hash = HashKv(layer[row], hash);
        FillLogits(hash, batch.ids[row], logits.row<float>(row));
      }
    });
    return logits;
  }

  // One row of the store: a function of where it is and which token it is of.
  static void WriteRow(std::byte* row, int64_t layer, int64_t position, int32_t id) {
    const int32_t values[4] = {static_cast<int32_t>(layer), static_cast<int32_t>(position), id, 77};
    std::memcpy(row, values, sizeof(values));
  }

  // The logits after `ids`, as any right run of the model gives them.
  static std::vector<float> Expected(const std::vector<int32_t>& ids) {
    uint64_t hash = 0;
    std::byte row[16];
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (size_t position = 0; position < ids.size(); ++position) {
        WriteRow(row, layer, static_cast<int64_t>(position), ids[position]);
        hash = HashRow(row, hash);
      }
    }
    std::vector<float> logits(kVocab);
    FillLogits(hash, ids.back(), logits.data());
    return logits;
  }

 private:
  static uint64_t HashRow(const std::byte* row, uint64_t hash) {
    for (int i = 0; i < 16; ++i) hash = (hash ^ static_cast<uint64_t>(row[i])) * 0x100000001b3u + 0x9e37;
    return hash ^ (hash >> 29);
  }
  static uint64_t HashKv(const AttentionSequence& sequence, uint64_t hash) {
    int64_t left = sequence.length;
    for (const KvSpan& span : sequence.kv) {
      for (int64_t t = 0; t < span.tokens && left > 0; ++t, --left) hash = HashRow(span.rows.data() + t * 16, hash);
    }
    RUNAHEAD_CHECK(left == 0 && sequence.queries == 1);
    return hash;
  }
  static void FillLogits(uint64_t hash, int32_t id, float* logits) {
    for (int64_t v = 0; v < kVocab; ++v) {
      hash = hash * 6364136223846793005u + 1442695040888963407u;
      logits[v] = static_cast<float>(hash >> 40) / static_cast<float>(1 << 22);
      if (v == kPoison) logits[v] = -10;  // never drawn by accident
      if (id == kPoison) logits[v] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  Device& device_;
  ModelConfig config_;
  AttentionShape shape_;
};

}  // namespace runahead::testing
