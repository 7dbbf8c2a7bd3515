// What a DecodeEngine's sequences find of others that ended, and what they leave.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/engine.h"
#include "worker/decode/engine_active.h"

namespace runahead {

// Only who computes rows of prompts goes on from a beginning.
absl::Status DecodeEngine::CheckKnown() const {
  RUNAHEAD_RETURN_IF_ERROR(CheckRows());
  return CheckLends();
}

absl::Status DecodeEngine::CheckLends() const {
  if (!loop_->stores_kv()) {
    return absl::FailedPreconditionError("this worker's steps keep KV elsewhere than in its store");
  }
  if (store_.keeps()) return absl::OkStatus();
  return absl::FailedPreconditionError("this worker keeps nothing of sequences that ended (keep_beginnings)");
}

// Returns when the device is done with it, also on failure: the source may be another's afterwards.
absl::Status DecodeEngine::CopyKnown(KvStore::Sequence& kv) {
  std::vector<CopyPart> copies = kv.Copies();
  if (copies.empty()) return absl::OkStatus();
  absl::Status status = device_.CopyAll(*stream_, std::move(copies));
  const absl::Status done = device_.Record(*stream_).Wait();
  if (status.ok()) status = done;
  kv.EndCopies();
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("what is known of a prompt could not be copied: ", status.ToString()));
}

// Before the loop lets it go: of X that came instead of KV nobody else has made KV.
void DecodeEngine::KeepKnown(Active& active) {
  if (!CheckLends().ok() || !loop_->SettleKv(*active.kv)) return;
  std::vector<int32_t> ids = active.request.prompt_ids;
  ids.insert(ids.end(), active.request.output_ids.begin(), active.request.output_ids.end());
  ids.resize(active.computed);
  active.kv->Keep(ids);
}

// Others may begin with it while this one is decoded: of its rows no step writes any.
void DecodeEngine::KeepPrompt(Active& active) {
  if (!CheckLends().ok() || std::exchange(active.kept_prompt, true) || !loop_->SettleKv(*active.kv)) return;
  active.kv->Keep(active.request.prompt_ids);
}

}  // namespace runahead
