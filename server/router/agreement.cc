#include "server/router/agreement.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/rpc/transport_options.h"
#include "worker/format/gguf_split.h"

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

std::string AliasOf(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::absolute(path, ignored).lexically_normal();
  return WithoutGgufEnding((whole.has_filename() ? whole : whole.parent_path()).filename().string());
}

bool IsNameOf(const ModelInfo& model, absl::string_view name) {
  return absl::EqualsIgnoreCase(name, model.name) ||
         (!model.alias.empty() && absl::EqualsIgnoreCase(name, model.alias));
}

std::string NamesOf(const ModelInfo& model) {
  if (model.alias.empty()) return absl::StrCat("\"", model.name, "\"");
  return absl::StrCat("\"", model.name, "\" (or \"", model.alias, "\")");
}

PoolTerms TermsOf(const v1::Capabilities& worker) {
  PoolTerms terms;
  terms.weights_fingerprint = worker.weights_fingerprint();
  terms.compute_dtype = worker.compute_dtype();
  terms.kv_dtype = worker.kv_dtype();
  terms.layers = worker.layers();
  terms.kv_row_bytes = worker.kv_row_bytes();
  terms.kv_block_tokens = worker.kv_block_tokens();
  terms.kv_heads = worker.kv_heads();
  terms.head_dim = worker.head_dim();
  terms.kv_row_order = worker.kv_row_order();
  terms.x_form = worker.x_form();
  terms.x_row_bytes = worker.x_row_bytes();
  return terms;
}

absl::Status CheckAgreement(const WorkerSpec& spec, const v1::Capabilities& worker, const ModelInfo& model,
                            absl::string_view dtype, const PoolTerms* pool) {
  std::vector<std::string> differences;
  Compare("protocol_version", worker.protocol_version(), kProtocolVersion, differences);
  if ((spec.prefills() && !Has(worker, v1::WORKER_ROLE_PREFILL)) ||
      (spec.decodes() && !Has(worker, v1::WORKER_ROLE_DECODE))) {
    differences.push_back(absl::StrCat("it does not have the role ", spec.role, " that the worker list gives it"));
  }
  Compare("model_fingerprint", worker.model_fingerprint(), model.fingerprint, differences);
  Compare("tokenizer_fingerprint", worker.tokenizer_fingerprint(), model.tokenizer_fingerprint, differences);
  Compare("chat_template_fingerprint", worker.chat_template_fingerprint(), model.chat_template_fingerprint,
          differences);
  if (worker.context_length() < model.context_length) {
    Compare("context_length", worker.context_length(), model.context_length, differences);
  }
  if (pool != nullptr) {
    const PoolTerms own = TermsOf(worker);
    Compare("weights_fingerprint", own.weights_fingerprint, pool->weights_fingerprint, differences);
    Compare("compute_dtype", own.compute_dtype, pool->compute_dtype, differences);
    Compare("kv_dtype", own.kv_dtype, pool->kv_dtype, differences);
    Compare("layers", own.layers, pool->layers, differences);
    Compare("kv_row_bytes", own.kv_row_bytes, pool->kv_row_bytes, differences);
    Compare("kv_block_tokens", own.kv_block_tokens, pool->kv_block_tokens, differences);
    Compare("kv_heads", own.kv_heads, pool->kv_heads, differences);
    Compare("head_dim", own.head_dim, pool->head_dim, differences);
    Compare("kv_row_order", own.kv_row_order, pool->kv_row_order, differences);
    Compare("x_form", own.x_form, pool->x_form, differences);
    Compare("x_row_bytes", own.x_row_bytes, pool->x_row_bytes, differences);
  } else if (dtype != "auto") {
    Compare("compute_dtype", worker.compute_dtype(), std::string(dtype), differences);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker.name(), " does not agree: ", absl::StrJoin(differences, "; ")));
}

}  // namespace runahead
