#include "server/tokenizer/tokenizer_archive.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"
#include "server/base/zip_archive.h"
#include "server/tokenizer/marked_text.h"
#include "server/tokenizer/template_tokens.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/tokenizer_config_json.h"
#include "server/tokenizer/tokenizer_json_writer.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {
namespace {

constexpr char kOwnTokenizer[] = "tokenizer.huggingface.json";
constexpr char kOwnConfig[] = "tokenizer.huggingface.config";
constexpr char kOwnMap[] = "tokenizer.huggingface.special_tokens_map";
constexpr char kTemplateText[] = "tokenizer.chat_template";

// Of keys that are not there, or have another type: nothing. They are said of the model, and no tokenizer needs them.
template <typename T>
std::optional<T> IfKnown(absl::StatusOr<T> value) {
  return value.ok() ? std::optional<T>(*std::move(value)) : std::nullopt;
}

class ArchiveMaker {
 public:
  explicit ArchiveMaker(const ModelFile& file) : file_(file) {}

  absl::StatusOr<std::string> Make() {
    RUNAHEAD_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(file_));
    RUNAHEAD_ASSIGN_OR_RETURN(const TokenizerFacts facts, FactsOf(vocabulary));
    if (file_.Has(kOwnTokenizer)) {
      RUNAHEAD_RETURN_IF_ERROR(AddOwn(facts));
    } else {
      absl::StatusOr<std::string> json = TokenizerJson(vocabulary);
      if (!json.ok()) return Error(json.status().message());
      Add("tokenizer.json", *std::move(json));
      Add("tokenizer_config.json", TokenizerConfigJson(facts));
    }
    if (file_.container() == ModelFile::Container::kFolder) {
      RUNAHEAD_RETURN_IF_ERROR(AddFromFolder("config.json"));
      RUNAHEAD_RETURN_IF_ERROR(AddFromFolder("generation_config.json"));
    } else {
      Add("config.json", ModelConfigJson(facts));
    }
    return Packed();
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::FailedPreconditionError(absl::StrCat(file_.path(), ": ", parts...));
  }

  void Add(std::string name, std::string bytes) { files_.emplace_back(std::move(name), std::move(bytes)); }

  absl::StatusOr<TokenizerFacts> FactsOf(const Vocabulary& vocabulary) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::FromVocabulary(vocabulary));
    TokenizerFacts facts;
    RUNAHEAD_ASSIGN_OR_RETURN(const ChatVariables tokens, TemplateTokens(file_, *tokenizer));
    for (const auto& [name, value] : tokens) {
      const MarkedText* text = jinja::As<MarkedText>(value);
      if (text != nullptr) facts.tokens.emplace_back(name, ToUtf8(*text));
    }
    facts.chat_template = IfKnown(file_.GetString(kTemplateText));
    facts.model_type = IfKnown(file_.GetString("general.architecture")).value_or("");
    facts.adds_bos = vocabulary.adds_bos;
    facts.context = IfKnown(file_.GetUint(absl::StrCat(facts.model_type, ".context_length")));
    facts.rows = IfKnown(VocabularySize(file_));
    facts.bos = vocabulary.bos;
    facts.ends.assign(tokenizer->end_ids().begin(), tokenizer->end_ids().end());
    return facts;
  }

  // What the model has of the folder itself: as it was when the model was opened, which is what our tokenizer has.
  absl::Status AddOwn(const TokenizerFacts& facts) {
    for (const auto& [key, name] : {std::pair(kOwnTokenizer, "tokenizer.json"),
                                    {kOwnConfig, "tokenizer_config.json"},
                                    {kOwnMap, "special_tokens_map.json"}}) {
      if (!file_.Has(key)) continue;
      RUNAHEAD_ASSIGN_OR_RETURN(std::string text, file_.GetString(key));
      Add(name, std::move(text));
    }
    if (!file_.Has(kOwnConfig)) Add("tokenizer_config.json", TokenizerConfigJson(facts));
    if (facts.chat_template) Add("chat_template.jinja", *facts.chat_template);
    return absl::OkStatus();
  }

  absl::Status AddFromFolder(const std::string& name) {
    absl::StatusOr<std::string> text = ReadTextFile(absl::StrCat(file_.path(), "/", name), kMaxTokenizerArchive);
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    if (!text.ok()) return text.status();
    Add(name, *std::move(text));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Packed() const {
    constexpr size_t kMostForNames = 4096;  // of the few files, and what the format says beside them
    size_t bytes = kMostForNames;
    std::vector<ZipEntry> entries;
    for (const auto& [name, text] : files_) {
      bytes += text.size();
      entries.push_back({name, text});
    }
    if (bytes > static_cast<size_t>(kMaxTokenizerArchive)) {
      return Error("the tokenizer's files have some ", bytes, " bytes; at most ", kMaxTokenizerArchive, " can be sent");
    }
    return ZipArchive(entries);
  }

  const ModelFile& file_;
  std::vector<std::pair<std::string, std::string>> files_;  // by name, in the archive's order
};

}  // namespace

absl::StatusOr<std::string> TokenizerArchive(const ModelFile& file) {
  return ArchiveMaker(file).Make();
}

}  // namespace runahead
