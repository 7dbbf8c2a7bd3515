#include "worker/model/warm_up.h"

#include <algorithm>
#include <memory>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// One chunk of rows, then a rest that is no power of two: every block size that the GEMMs cut rows into.
constexpr int64_t kWarmUpTokens = 1023;

// One sequence whose layers share one buffer: what they compute does not matter.
class OneLayerPort : public KvPort {
 public:
  OneLayerPort(BufferRef buffer, int64_t tokens) : span_{std::move(buffer), tokens} {}
  absl::Status Begin(int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t) override { return std::vector<KvSpan>{span_}; }
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t, Stream&) override {
    return std::vector<AttentionSequence>{{0, span_.tokens, span_.tokens, {span_}}};
  }

 private:
  const KvSpan span_;
};

absl::Status Pass(const Model& model, Device& device, int64_t tokens, bool batch_invariant) {
  ForwardBatch batch;
  batch.batch_invariant = batch_invariant;
  batch.logit_rows = {tokens - 1};
  for (int64_t i = 0; i < tokens; ++i) {
    batch.ids.push_back(static_cast<int32_t>(i % model.config().vocab));
    batch.positions.push_back(static_cast<int32_t>(i));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(
      std::shared_ptr<Buffer> kv,
      device.Allocate(static_cast<size_t>(tokens * model.attention_shape().kv_row_bytes()), MemoryKind::kDevice));
  OneLayerPort port(BufferRef::Whole(std::move(kv)), tokens);
  ForwardScratch scratch(device);
  const std::unique_ptr<Stream> stream = device.NewStream("warm-up");
  RUNAHEAD_RETURN_IF_ERROR(model.Forward(*stream, scratch, batch, port).status());
  return device.Record(*stream).Wait();
}

}  // namespace

absl::Status WarmUp(const Model& model, Device& device, unsigned uses) {
  if (uses & kUsePrefill) {
    RUNAHEAD_RETURN_IF_ERROR(Pass(model, device, std::min(kWarmUpTokens, model.config().context_length), false));
  }
  if (uses & kUseDecode) RUNAHEAD_RETURN_IF_ERROR(Pass(model, device, 1, true));
  return absl::OkStatus();
}

}  // namespace runahead
