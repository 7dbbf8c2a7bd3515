#include "worker/model/unread_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

constexpr size_t kMostRemarks = 20;  // keys are up to the file

// Which value of a key changes nothing.
enum class Harmless { kAny, kZero, kFalse, kTrue, kNone };

bool IsHarmless(const MetadataValue& found, Harmless value) {
  const bool zero = std::all_of(found.bytes.begin(), found.bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  const bool is_bool = found.type == MetadataValue::Type::kBool;
  const bool is_number =
      !is_bool && found.type != MetadataValue::Type::kString && found.type != MetadataValue::Type::kArray;
  switch (value) {
    case Harmless::kAny:
      return true;
    case Harmless::kZero:
      return is_number && zero;
    case Harmless::kFalse:
      return is_bool && zero;
    case Harmless::kTrue:
      return is_bool && !zero;
    case Harmless::kNone:
      return false;
  }
  return false;
}

struct KnownKey {
  absl::string_view name;
  Harmless value;
};

// Of an architecture.
constexpr KnownKey kHarmlessKeys[] = {
    {"vocab_size", Harmless::kAny},              // the height of token_embd.weight is the vocabulary's size
    {"tensor_data_layout", Harmless::kAny},      // the architecture says in which order rows of Q and K lie
    {"rope.scaling.finetuned", Harmless::kAny},  // how the model was trained
    // Only yarn and llama3 look at it, and they ask for it; converters write it without a type, too.
    {"rope.scaling.original_context_length", Harmless::kAny},
    {"attention.causal", Harmless::kTrue},  // all families are
    {"attention.sliding_window", Harmless::kZero},
    {"expert_count", Harmless::kZero},
    {"expert_used_count", Harmless::kZero},
    {"pooling_type", Harmless::kZero}};  // none

// Those by which llama.cpp computes something else, whatever the architecture, and their value that does not.
constexpr KnownKey kRefusedKeys[] = {{"attention.causal", Harmless::kTrue},
                                     {"rope.scaling.yarn_attn_factor", Harmless::kNone},
                                     {"rope.scaling.yarn_ext_factor", Harmless::kNone},
                                     {"rope.scaling.yarn_log_multiplier", Harmless::kNone}};

// Of tokenizers, behind "tokenizer.": what server/tokenizer reads, and what changes neither ids nor where answers end.
constexpr KnownKey kTokenizerKeys[] = {
    {"ggml.model", Harmless::kAny},
    {"ggml.pre", Harmless::kAny},
    {"ggml.tokens", Harmless::kAny},
    {"ggml.token_type", Harmless::kAny},
    {"ggml.scores", Harmless::kAny},
    {"ggml.merges", Harmless::kAny},
    {"ggml.add_bos_token", Harmless::kAny},
    {"ggml.add_space_prefix", Harmless::kAny},
    {"ggml.remove_extra_whitespaces", Harmless::kAny},
    {"ggml.precompiled_charsmap", Harmless::kAny},
    {"ggml.bos_token_id", Harmless::kAny},
    {"ggml.eos_token_id", Harmless::kAny},
    {"ggml.eos_token_ids", Harmless::kAny},
    {"ggml.eot_token_id", Harmless::kAny},
    {"ggml.eom_token_id", Harmless::kAny},
    {"ggml.unknown_token_id", Harmless::kAny},
    {"ggml.padding_token_id", Harmless::kAny},
    {"huggingface.json", Harmless::kAny},
    {"huggingface.config", Harmless::kAny},
    {"chat_template", Harmless::kAny},
    {"chat_template.tool_use", Harmless::kAny},
    // Not read. The ends of parts are for encoders and for filling gaps in code, neither of which is served.
    {"chat_templates", Harmless::kAny},  // the names of the others
    {"ggml.token_type_count", Harmless::kAny},
    {"ggml.add_eos_token", Harmless::kFalse},
    {"ggml.add_sep_token", Harmless::kFalse},
    {"ggml.seperator_token_id", Harmless::kAny},
    {"ggml.cls_token_id", Harmless::kAny},
    {"ggml.mask_token_id", Harmless::kAny},
    {"ggml.prefix_token_id", Harmless::kAny},
    {"ggml.suffix_token_id", Harmless::kAny},
    {"ggml.middle_token_id", Harmless::kAny},
    {"ggml.fim_pre_token_id", Harmless::kAny},
    {"ggml.fim_suf_token_id", Harmless::kAny},
    {"ggml.fim_mid_token_id", Harmless::kAny},
    {"ggml.fim_pad_token_id", Harmless::kAny},
    {"ggml.fim_rep_token_id", Harmless::kAny},
    {"ggml.fim_sep_token_id", Harmless::kAny}};

// `found` without what its key begins with.
bool IsHarmless(const ModelFile::Entry& found, size_t prefix, absl::Span<const KnownKey> known) {
  return std::any_of(known.begin(), known.end(), [&](const KnownKey& entry) {
    return found.key.substr(prefix) == entry.name && IsHarmless(found.value, entry.value);
  });
}

std::string Remark(const ModelFile& file, absl::string_view key) {
  const std::string where = absl::StrCat(file.path(), ": metadata key ", Quoted(key));
  if (key == "tokenizer.ggml.add_eos_token") {
    return absl::StrCat(where, " has no effect: a prompt is continued, so no token that ends texts is put behind it");
  }
  return absl::StrCat(where, " is not read: what it says has no effect");
}

}  // namespace

absl::Status CheckUnreadKeys(const ConfigKeys& keys) {
  if (keys.file().container() == ModelFile::Container::kFolder) return absl::OkStatus();
  for (const ModelFile::Entry& unasked : keys.Unasked()) {
    for (const KnownKey& refused : kRefusedKeys) {
      const absl::string_view name = unasked.key.substr(keys.prefix().size());
      if (name != refused.name || IsHarmless(unasked.value, refused.value)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(keys.file().path(), ": key ", unasked.key, ": what it asks for is not supported"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> UnreadKeyRemarks(const ConfigKeys& keys) {
  std::vector<std::string> remarks;
  const ModelFile& file = keys.file();
  if (file.container() == ModelFile::Container::kFolder) return remarks;
  size_t more = 0;
  const auto judge = [&](const std::vector<ModelFile::Entry>& unread, size_t prefix, absl::Span<const KnownKey> known) {
    for (const ModelFile::Entry& entry : unread) {
      if (IsHarmless(entry, prefix, known)) continue;
      if (remarks.size() < kMostRemarks) {
        remarks.push_back(Remark(file, entry.key));
      } else {
        ++more;
      }
    }
  };
  judge(keys.Unasked(), keys.prefix().size(), kHarmlessKeys);
  constexpr absl::string_view kOfTokenizer = "tokenizer.";
  judge(file.Entries(kOfTokenizer), kOfTokenizer.size(), kTokenizerKeys);
  if (more > 0) remarks.push_back(absl::StrCat(file.path(), ": ", more, " other metadata keys are not read, either"));
  return remarks;
}

}  // namespace runahead
