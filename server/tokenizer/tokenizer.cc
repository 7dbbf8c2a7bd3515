#include "server/tokenizer/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// The file's numbers for kinds of tokens. Control tokens steer; user-defined ones are text that is always one token.
constexpr int64_t kNormal = 1;
constexpr int64_t kUnknown = 2;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;

// Names by which vocabularies call the end of a turn or a text; counted only where they are control tokens.
constexpr std::string_view kEndNames[] = {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>",
                                          "<|eom_id|>", "<|end|>",       "<end_of_turn>",   "</s>"};

absl::Status Error(const ModelFile& file, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", message));
}

std::vector<std::string_view> ToStd(const std::vector<absl::string_view>& views) {
  std::vector<std::string_view> out;
  out.reserve(views.size());
  for (absl::string_view view : views) out.emplace_back(view.data(), view.size());
  return out;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::FromGguf(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") return Error(file, absl::StrCat("tokenizer model '", model, "' is not supported; 'gpt2' is"));
  std::string pre_name = "default";
  if (file.Has("tokenizer.ggml.pre")) {
    RUNAHEAD_ASSIGN_OR_RETURN(pre_name, file.GetString("tokenizer.ggml.pre"));
  }
  absl::StatusOr<PreTokenizer> pre = PreTokenizer::Create(pre_name);
  if (!pre.ok()) return Error(file, absl::StrCat("tokenizer.ggml.pre: ", pre.status().message()));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto token_views, file.GetStrings("tokenizer.ggml.tokens"));
  RUNAHEAD_ASSIGN_OR_RETURN(const auto merge_views, file.GetStrings("tokenizer.ggml.merges"));
  const std::vector<std::string_view> tokens = ToStd(token_views);
  if (tokens.empty() || tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Error(file, absl::StrCat("tokenizer.ggml.tokens has ", tokens.size(), " tokens"));
  }
  absl::StatusOr<BpeMerges> merges = BpeMerges::Build(tokens, ToStd(merge_views));
  if (!merges.ok()) return Error(file, absl::StrCat("tokenizer.ggml.merges: ", merges.status().message()));

  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(*std::move(pre), *std::move(merges)));
  RUNAHEAD_RETURN_IF_ERROR(tokenizer->LoadTokens(file, tokens));
  RUNAHEAD_RETURN_IF_ERROR(tokenizer->LoadIds(file));
  return tokenizer;
}

absl::Status Tokenizer::LoadTokens(const ModelFile& file, absl::Span<const std::string_view> tokens) {
  std::vector<int64_t> kinds(tokens.size(), kNormal);
  if (file.Has("tokenizer.ggml.token_type")) {
    RUNAHEAD_ASSIGN_OR_RETURN(kinds, file.GetInts("tokenizer.ggml.token_type"));
  }
  if (kinds.size() != tokens.size()) {
    return Error(
        file, absl::StrCat("tokenizer.ggml.token_type has ", kinds.size(), " entries for ", tokens.size(), " tokens"));
  }
  bytes_.reserve(tokens.size());
  special_.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool control = kinds[id] == kControl || kinds[id] == kUnknown;
    const bool by_name = control || kinds[id] == kUserDefined;
    special_.push_back(control);
    bytes_.push_back(by_name ? std::string(tokens[id]) : AlphabetToBytes(tokens[id]));
    if (by_name) special_tokens_.Add(tokens[id], static_cast<int32_t>(id), control);
    const std::string& bytes = bytes_.back();
    longest_token_ = std::max(longest_token_, static_cast<int64_t>(bytes.size()));
    const auto byte = static_cast<unsigned char>(bytes.empty() ? 0 : bytes[0]);
    if (bytes.size() == 1 && tokens[id] == ByteToAlphabet(byte)) has_token_[byte] = true;
    const bool end = std::find(std::begin(kEndNames), std::end(kEndNames), tokens[id]) != std::end(kEndNames);
    if (control && end) end_ids_.push_back(static_cast<int32_t>(id));
  }
  if (pre_tokenizer_.whole_words_first()) {
    for (size_t id = 0; id < bytes_.size(); ++id) {
      if (kinds[id] == kNormal) whole_words_.emplace(bytes_[id], static_cast<int32_t>(id));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::LoadIds(const ModelFile& file) {
  const auto read = [&](const char* key, std::optional<int32_t>& id) -> absl::Status {
    if (!file.Has(key)) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
    if (value >= bytes_.size()) {
      return Error(file, absl::StrCat(key, " is ", value, "; the vocabulary ends at ", bytes_.size() - 1));
    }
    id = static_cast<int32_t>(value);
    return absl::OkStatus();
  };
  RUNAHEAD_RETURN_IF_ERROR(read("tokenizer.ggml.bos_token_id", bos_id_));
  RUNAHEAD_RETURN_IF_ERROR(read("tokenizer.ggml.eos_token_id", eos_id_));
  std::optional<int32_t> end_of_turn;
  RUNAHEAD_RETURN_IF_ERROR(read("tokenizer.ggml.eot_token_id", end_of_turn));
  for (const std::optional<int32_t>& id : {eos_id_, end_of_turn}) {
    if (id) end_ids_.push_back(*id);
  }
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());

  adds_bos_ = pre_tokenizer_.adds_bos();
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    RUNAHEAD_ASSIGN_OR_RETURN(adds_bos_, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  if (adds_bos_ && !bos_id_) {
    return Error(file, "sequences begin with BOS, but tokenizer.ggml.bos_token_id is missing");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options,
                                                       KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeViews({View{text, options.parse_special}}, keep_going));
  if (options.add_bos && adds_bos_) ids.insert(ids.begin(), *bos_id_);
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeParts(absl::Span<const TextPart> parts,
                                                            KeepGoing keep_going) const {
  std::vector<View> views;
  for (const TextPart& part : parts) views.push_back({part.text, part.parse_special});
  return EncodeViews(views, keep_going);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeViews(absl::Span<const View> parts, KeepGoing keep_going) const {
  size_t total = 0;
  for (const View& part : parts) total += part.text.size();
  if (total > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", total, " bytes; at most ", kMaxTextBytes, " can be encoded"));
  }
  std::vector<int32_t> ids;
  Steps steps(keep_going);
  std::string begun;  // text of former parts since the last special token
  const auto append = [&](std::string_view text) {
    if (begun.empty()) return AppendWords(text, steps, ids);
    const std::string whole = absl::StrCat(std::exchange(begun, {}), absl::string_view(text.data(), text.size()));
    return AppendWords(whole, steps, ids);
  };
  for (const View& part : parts) {
    size_t done = 0;
    while (const auto match = special_tokens_.Find(part.text, done, part.parse_special)) {
      RUNAHEAD_RETURN_IF_ERROR(steps.Next());
      RUNAHEAD_RETURN_IF_ERROR(append(part.text.substr(done, match->begin - done)));
      ids.push_back(match->id);
      done = match->begin + match->bytes;
    }
    const std::string_view rest = part.text.substr(done);
    if (&part == &parts.back()) {
      RUNAHEAD_RETURN_IF_ERROR(append(rest));
    } else {
      begun += rest;
    }
  }
  return ids;
}

absl::Status Tokenizer::AppendWords(std::string_view text, Steps& steps, std::vector<int32_t>& ids) const {
  return pre_tokenizer_.Split(text, [&](std::string_view word) {
    const auto whole = whole_words_.find(absl::string_view(word.data(), word.size()));
    if (whole == whole_words_.end()) return merges_.Encode(word, steps, ids);
    ids.push_back(whole->second);
    return steps.Next();
  });
}

int64_t Tokenizer::LeastTokens(absl::Span<const std::string_view> texts) const {
  int64_t bytes = 0;  // that some token must cover
  for (const std::string_view text : texts) {
    for (const char c : text) bytes += has_token_[static_cast<unsigned char>(c)];
  }
  return (bytes + longest_token_ - 1) / longest_token_;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (!skip_special || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  return ReplaceInvalidUtf8(bytes);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

}  // namespace runahead
