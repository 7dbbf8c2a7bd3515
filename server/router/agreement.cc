#include "server/router/agreement.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace runahead {
namespace {

bool Has(const v1::Capabilities& worker, v1::WorkerRole role) {
  return std::count(worker.roles().begin(), worker.roles().end(), role) > 0;
}

template <typename T>
void Compare(const char* what, const T& worker, const T& wanted, std::vector<std::string>& differences) {
  if (worker != wanted) differences.push_back(absl::StrCat(what, " is ", worker, ", wanted ", wanted));
}

}  // namespace

bool IsNameOf(const ModelInfo& model, absl::string_view name) {
  return absl::EqualsIgnoreCase(name, model.name) ||
         (!model.alias.empty() && absl::EqualsIgnoreCase(name, model.alias));
}

std::string NamesOf(const ModelInfo& model) {
  if (model.alias.empty()) return absl::StrCat("\"", model.name, "\"");
  return absl::StrCat("\"", model.name, "\" (or \"", model.alias, "\")");
}

absl::Status CheckAgreement(const WorkerSpec& spec, const v1::Capabilities& worker, const ModelInfo& model,
                            const v1::Capabilities* pool) {
  std::vector<std::string> differences;
  Compare("protocol_version", worker.protocol_version(), kProtocolVersion, differences);
  if ((spec.prefills() && !Has(worker, v1::WORKER_ROLE_PREFILL)) ||
      (spec.decodes() && !Has(worker, v1::WORKER_ROLE_DECODE))) {
    differences.push_back(absl::StrCat("it does not have the role ", spec.role, " that the worker list gives it"));
  }
  Compare("model_fingerprint", worker.model_fingerprint(), model.fingerprint, differences);
  if (worker.context_length() < model.context_length) {
    Compare("context_length", worker.context_length(), model.context_length, differences);
  }
  if (pool != nullptr) {
    Compare("compute_dtype", worker.compute_dtype(), pool->compute_dtype(), differences);
    Compare("kv_dtype", worker.kv_dtype(), pool->kv_dtype(), differences);
    Compare("layers", worker.layers(), pool->layers(), differences);
    Compare("kv_row_bytes", worker.kv_row_bytes(), pool->kv_row_bytes(), differences);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker.name(), " does not agree: ", absl::StrJoin(differences, "; ")));
}

}  // namespace runahead
