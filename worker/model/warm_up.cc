#include "worker/model/warm_up.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/model/layer_pass.h"
#include "worker/model/token_sampler.h"

namespace runahead {
namespace {

// Lengths of prompts, rising: some that are less than a chunk of rows, and a chunk with a rest that is no power of two,
// which is every block size that a CPU's GEMMs cut rows into. A GPU takes other kernels for fewer rows, and loads each
// at its first launch, when it has nothing else to do: not while it serves.
std::vector<int64_t> WarmUpTokens(int64_t gemm_rows, int64_t context) {
  constexpr int64_t kFewest = 16;
  std::vector<int64_t> tokens = {std::min(2 * gemm_rows - 1, context)};
  for (int64_t rows = gemm_rows / 4; rows >= kFewest; rows /= 4) {
    if (rows < context) tokens.insert(tokens.begin(), rows);
  }
  return tokens;
}

// One sequence whose layers share one buffer of KV: what they compute does not matter.
absl::Status Warm(const Model& model, Device& device, int64_t tokens, bool batch_invariant) {
  ForwardBatch batch;
  batch.kv = KvLayout::OnePage(tokens, tokens);
  batch.batch_invariant = batch_invariant;
  batch.logit_rows = {tokens - 1};
  for (int64_t i = 0; i < tokens; ++i) batch.ids.push_back(static_cast<int32_t>(i % model.config().vocab));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            device.Allocate(static_cast<size_t>(tokens * model.kv_row_bytes()), MemoryKind::kDevice));
  const BufferRef kv = BufferRef::Whole(std::move(memory));
  ForwardScratch own(device), shared(device);
  const std::unique_ptr<Stream> stream = device.NewStream("warm-up");
  LayerPass pass(model, device, *stream, {own, shared}, std::move(batch));
  RUNAHEAD_RETURN_IF_ERROR(pass.Begin());
  // Where weights are streamed no layer has them now: the first steps to run, those of the profile, warm them.
  const int64_t layers = model.streams_weights() ? 0 : model.config().layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    RUNAHEAD_RETURN_IF_ERROR(pass.Project(layer, kv));
    RUNAHEAD_RETURN_IF_ERROR(pass.Attend(layer, kv));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, pass.Logits());
  RUNAHEAD_ASSIGN_OR_RETURN(const std::unique_ptr<TokenSampler> sampler,
                            TokenSampler::Create(device, 1, model.config().vocab));
  const SamplingOptions options{.temperature = 1, .logprobs = 1};
  const PenaltyCounts counts;
  RUNAHEAD_RETURN_IF_ERROR(sampler->Enqueue(*stream, logits, {{options, tokens, counts, nullptr}}));
  return device.Record(*stream).Wait();
}

}  // namespace

absl::Status WarmUp(const Model& model, Device& device, unsigned uses) {
  if (uses & kUsePrefill) {
    const std::vector<int64_t> lengths = WarmUpTokens(device.gemm_rows(), model.config().context_length);
    for (const int64_t tokens : lengths) {
      const absl::Status status = Warm(model, device, tokens, false);
      // Prompts that find no room here will find none later.
      if (absl::IsResourceExhausted(status) && tokens > lengths.front()) break;
      RUNAHEAD_RETURN_IF_ERROR(status);
    }
  }
  if (uses & kUseDecode) RUNAHEAD_RETURN_IF_ERROR(Warm(model, device, 1, true));
  return absl::OkStatus();
}

}  // namespace runahead
