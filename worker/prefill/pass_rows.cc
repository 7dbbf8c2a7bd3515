#include "worker/prefill/pass_rows.h"

#include <algorithm>
#include <utility>

#include "scheduler/placement/together.h"
#include "worker/prefill/job_memory.h"

namespace runahead {
namespace {

// Of pages that jobs share a buffer in: few rows are left over behind a short prompt, and few pages are listed. A job's
// pages follow each other, which devices attend over as over one.
constexpr int64_t kSharedPageTokens = 16;

int64_t PagesOf(const PrefillJob& job) {
  return (job.tokens() + kSharedPageTokens - 1) / kSharedPageTokens;
}

}  // namespace

bool MayShare(const PrefillJob& job) {
  return job.parts() == 1 && job.prefix == nullptr && job.scored_tokens() == 0 && FitTogether(0, job.tokens());
}

PassRows PassRowsOf(absl::Span<const PrefillJob* const> jobs, const Model& model, const Device& device) {
  if (jobs.size() == 1) {
    const LayerRows rows = LayerRowsOf(*jobs[0], model, device);
    return {rows, {{rows}}};
  }
  const auto hands_off_x = [](const PrefillJob* job) { return job->own_x_tokens() > 0; };
  const bool with_x = std::any_of(jobs.begin(), jobs.end(), hands_off_x);
  PassRows pass{{.kv_row_bytes = model.kv_row_bytes(), .x_row_bytes = XRowBytesOf(model, device)}, {}};
  for (const PrefillJob* job : jobs) {
    LayerRows own = LayerRowsOf(*job, model, device);
    own.x = with_x ? job->tokens() : 0;
    pass.parts.push_back({own, pass.all.kv, pass.all.x});
    pass.all.kv += PagesOf(*job) * kSharedPageTokens;
    pass.all.x += own.x;
  }
  return pass;
}

KvLayout SharedLayout(absl::Span<const PrefillJob* const> jobs) {
  KvLayout layout;
  layout.page_tokens = kSharedPageTokens;
  for (const PrefillJob* job : jobs) {
    const auto first_page = static_cast<int64_t>(layout.pages.size());
    layout.sequences.push_back(
        {.queries = job->tokens(), .length = job->tokens(), .first_page = first_page, .end = job->tokens()});
    for (int64_t page = 0; page < PagesOf(*job); ++page) {
      layout.pages.push_back(static_cast<int32_t>(first_page + page));
    }
  }
  return layout;
}

ForwardBatch BatchOf(absl::Span<const PrefillJob* const> jobs, KvLayout kv) {
  ForwardBatch batch;
  batch.kv = std::move(kv);
  batch.kv.of_prompts = true;
  for (const PrefillJob* job : jobs) {
    batch.ids.insert(batch.ids.end(), job->ids.end() - job->tokens(), job->ids.end());
    batch.scored_rows = job->scored_tokens();
    for (int64_t row = 0; row < batch.scored_rows; ++row) batch.logit_rows.push_back(row);
    if (job->tail()) batch.logit_rows.push_back(static_cast<int64_t>(batch.ids.size()) - 1);
  }
  return batch;
}

}  // namespace runahead
