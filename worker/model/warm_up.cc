#include "worker/model/warm_up.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/monotonic.h"
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

// One sequence whose layers share one buffer of KV: what they compute does not matter. How long the pass takes, which
// draws from the last token's logits, or from those of all.
absl::StatusOr<absl::Duration> Warm(const Model& model, Device& device, int64_t tokens, bool batch_invariant,
                                    bool draw_all = false) {
  ForwardBatch batch;
  batch.kv = KvLayout::OnePage(tokens, tokens);
  batch.batch_invariant = batch_invariant;
  batch.kv.of_prompts = !batch_invariant;
  for (int64_t row = draw_all ? 0 : tokens - 1; row < tokens; ++row) batch.logit_rows.push_back(row);
  const auto draws = static_cast<int64_t>(batch.logit_rows.size());
  for (int64_t i = 0; i < tokens; ++i) batch.ids.push_back(static_cast<int32_t>(i % model.config().vocab));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            device.Allocate(static_cast<size_t>(tokens * model.kv_row_bytes()), MemoryKind::kDevice));
  const BufferRef kv = BufferRef::Whole(std::move(memory));
  const absl::Time begin = MonotonicNow();
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
                            TokenSampler::Create(device, draws, model.config().vocab));
  const SamplingOptions options{.temperature = 1, .logprobs = 1};
  const PenaltyCounts counts;
  const std::vector<TokenSampler::Row> rows(draws, {options, tokens, counts, nullptr});
  RUNAHEAD_RETURN_IF_ERROR(sampler->Enqueue(*stream, logits, rows));
  RUNAHEAD_RETURN_IF_ERROR(device.Record(*stream).Wait());
  return MonotonicNow() - begin;
}

template <typename Run>
absl::StatusOr<absl::Duration> FasterOfTwo(const Run& run) {
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Duration first, run());
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Duration second, run());
  return std::min(first, second);
}

}  // namespace

absl::StatusOr<WarmUpTimes> WarmUp(const Model& model, Device& device, unsigned uses) {
  WarmUpTimes times;
  if (uses & kUsePrefill) {
    const std::vector<int64_t> lengths = WarmUpTokens(device.gemm_rows(), model.config().context_length);
    for (const int64_t tokens : lengths) {
      const absl::StatusOr<absl::Duration> took = Warm(model, device, tokens, false);
      // Prompts that find no room here will find none later.
      if (absl::IsResourceExhausted(took.status()) && tokens > lengths.front()) break;
      RUNAHEAD_RETURN_IF_ERROR(took.status());
      times.tokens = tokens;
      times.layer = *took / static_cast<double>(model.config().layers);
    }
  }
  if (uses & kUseDecode) {
    RUNAHEAD_ASSIGN_OR_RETURN(times.step, Warm(model, device, 1, true));
  }
  if (model.streams_weights()) times = {};
  return times;
}

absl::StatusOr<absl::Duration> TimeStep(const Model& model, Device& device, int64_t sequences) {
  return FasterOfTwo([&] { return Warm(model, device, sequences, /*batch_invariant=*/true, /*draw_all=*/true); });
}

absl::StatusOr<absl::Duration> TimePrompt(const Model& model, Device& device, int64_t tokens) {
  return FasterOfTwo([&] { return Warm(model, device, tokens, /*batch_invariant=*/false); });
}

}  // namespace runahead
