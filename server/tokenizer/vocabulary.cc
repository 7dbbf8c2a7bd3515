#include "server/tokenizer/vocabulary.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {

bool IsEndName(absl::string_view name, bool user_defined) {
  // Gemma has </s> as a user-defined token of text: HTML's.
  if (name == "</s>") return !user_defined;
  for (const absl::string_view end :
       {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"}) {
    if (name == end) return true;
  }
  return false;
}

absl::Status ReadIdKeys(const ModelFile& file, Vocabulary& vocabulary) {
  const size_t size = vocabulary.tokens.size();
  const auto read = [&](absl::string_view key, std::optional<int32_t>& id) -> absl::Status {
    if (!file.Has(key)) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
    if (value >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": ", key, " is ", value, "; the vocabulary ends at ", size - 1));
    }
    if (!id) id = static_cast<int32_t>(value);
    return absl::OkStatus();
  };
  RUNAHEAD_RETURN_IF_ERROR(read("tokenizer.ggml.bos_token_id", vocabulary.bos));
  RUNAHEAD_RETURN_IF_ERROR(read("tokenizer.ggml.eos_token_id", vocabulary.eos));
  // The ends of turns, and of messages behind which the caller has to act (a call of a tool).
  for (const absl::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    std::optional<int32_t> end;
    RUNAHEAD_RETURN_IF_ERROR(read(key, end));
    if (end) vocabulary.ends.push_back(*end);
  }
  constexpr char kEnds[] = "tokenizer.ggml.eos_token_ids";
  if (!file.Has(kEnds)) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, file.GetInts(kEnds));
  for (const int64_t end : ends) {
    // Configurations of models with small vocabularies have the family's ids: no answer has these, so they end none.
    if (end >= 0 && static_cast<size_t>(end) < size) vocabulary.ends.push_back(static_cast<int32_t>(end));
  }
  return absl::OkStatus();
}

absl::StatusOr<Vocabulary> ReadVocabulary(const ModelFile& file) {
  const bool json = file.container() == ModelFile::Container::kFolder || file.Has("tokenizer.huggingface.json");
  return json ? ReadJsonVocabulary(file) : ReadGgufVocabulary(file);
}

}  // namespace runahead
