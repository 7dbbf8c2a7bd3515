// Which workers may work together, and what the model is called. Pure, but for the working directory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/worker.pb.h"
#include "server/router/fleet.h"
#include "server/router/model_advice.h"
#include "server/router/pool_choice.h"

namespace runahead {

// What a model file says of itself, as far as the router needs it.
struct ModelInfo {
  std::string name;
  std::string fingerprint;  // ModelFile::fingerprint in 16 hexadecimal digits; likewise those below
  int context_length = 0;   // tokens
  // Ids are below it, those of requests as those of answers: what the workers' models take and draw (VocabularySize).
  // The tokenizer may have fewer, and the others no text.
  int vocabulary_size = 0;
  std::string alias = {};  // the file's name without folder and .gguf: a second name to call it by; may be empty
  std::string tokenizer_fingerprint = {}, chat_template_fingerprint = {};
  ModelAdvice advice = {};
};

// What the file or folder at `path` is called, however the path is spelled: "/models/some-model.Q4_1.gguf" and
// "some-model.Q4_1.gguf" give "some-model.Q4_1", "some-model/" and "./some-model/." give "some-model".
std::string AliasOf(const std::string& path);

// Whether `name` means this model: its name or its alias, whatever the case. Names inside GGUF files are often long and
// full of blanks; people know the file.
bool IsNameOf(const ModelInfo& model, absl::string_view name);

// How messages speak of the model: "Some Model 1B" (or "some-model-1b.Q4_1").
std::string NamesOf(const ModelInfo& model);

PoolTerms TermsOf(const v1::Capabilities& worker);

// FAILED_PRECONDITION names everything that does not agree: protocol version, role, model, compute dtype where the
// router's configuration names one (`dtype` is not "auto"), and, where the `pool` has been chosen, its terms.
absl::Status CheckAgreement(const WorkerSpec& spec, const v1::Capabilities& worker, const ModelInfo& model,
                            absl::string_view dtype, const PoolTerms* pool);

}  // namespace runahead
