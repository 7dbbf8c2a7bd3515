#include "worker/format/model_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/format/config_object.h"
#include "worker/format/folder_weights.h"
#include "worker/format/hf_config.h"
#include "worker/format/hf_names.h"
#include "worker/format/json_value.h"
#include "worker/format/metadata_writer.h"
#include "worker/format/quoted.h"
#include "xxhash.h"

namespace runahead {
namespace {

// Far above any real one. tokenizer.json, which is not parsed here, may have more.
constexpr size_t kMostTextBytes = size_t{64} << 20;

constexpr char kHeadTensor[] = "output.weight", kEmbeddingTensor[] = "token_embd.weight";
constexpr char kTemplate[] = "tokenizer.chat_template", kToolsTemplate[] = "tokenizer.chat_template.tool_use";

// What the folder is called: in Hugging Face's cache, where folders are called after commits, the model's name.
std::string NameOf(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::absolute(path, ignored).lexically_normal();
  const std::filesystem::path folder = whole.has_filename() ? whole : whole.parent_path();
  const std::string model = folder.parent_path().parent_path().filename().string();
  if (folder.parent_path().filename() == "snapshots") {
    const std::vector<std::string> parts = absl::StrSplit(model, "--");
    if (parts.size() >= 3 && parts[0] == "models") return parts.back();
  }
  return folder.filename().string();
}

}  // namespace

// Reads one folder into a ModelFile. Used once.
class FolderReader {
 public:
  explicit FolderReader(std::string path)
      : path_(std::move(path)), file_(new ModelFile(ModelFile::Container::kFolder)), kept_(new Kept) {
    file_->path_ = path_;
    file_->owner_ = kept_;
  }

  absl::StatusOr<std::shared_ptr<const ModelFile>> Read() {
    const absl::StatusOr<JsonValue> config = Json("config.json", /*needed=*/true);
    if (!config.ok()) return config.status();
    const absl::StatusOr<HfModel> model = TranslateHfConfig(*config, In("config.json"), keys());
    if (!model.ok()) return model.status();
    if (!model->unread_keys.empty()) file_->remarks_.push_back(model->unread_keys);
    keys().String("general.name", CleanName(Name(*config)));
    absl::Status status = ReadEnds(*config);
    if (status.ok()) status = ReadTokenizer();
    if (status.ok()) status = ReadTensors(*model);
    if (!status.ok()) return status;
    file_->metadata_ = keys().values();
    for (size_t i = 0; i < file_->tensors_.size(); ++i) file_->tensor_index_.emplace(file_->tensors_[i].name, i);
    file_->fingerprint_ = XXH64(hashed_.data(), hashed_.size(), /*seed=*/0);
    return std::shared_ptr<const ModelFile>(std::move(file_));
  }

 private:
  // Tensors of one kind.
  struct Named {
    int count = 0;
    std::string first = {};
    void Add(const std::string& name) {
      if (count++ == 0) first = name;
    }
  };
  // What the ModelFile's views are of.
  struct Kept {
    MetadataWriter keys;
    std::vector<std::shared_ptr<const MappedFile>> mapped;
    std::vector<std::vector<float>> rounded;  // tensors of F64
  };

  MetadataWriter& keys() { return kept_->keys; }
  std::string In(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

  // A file became part of the model; `hashed` of it says which it is.
  void Keep(const std::string& path, std::shared_ptr<const MappedFile> mapped, absl::Span<const std::byte> hashed) {
    const uint64_t numbers[] = {mapped->bytes().size(), XXH64(hashed.data(), hashed.size(), /*seed=*/0)};
    absl::StrAppend(&hashed_, path.substr(path.rfind('/') + 1), "\n");
    hashed_.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
    file_->parts_.push_back({path, mapped->numbers()});
    kept_->mapped.push_back(std::move(mapped));
  }

  // A text of the folder; null where there is none.
  absl::StatusOr<std::shared_ptr<const MappedFile>> Text(const char* name) {
    absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = OpenIfThere(In(name));
    if (mapped.ok() && *mapped != nullptr) Keep(In(name), *mapped, (*mapped)->bytes());
    return mapped;
  }

  // The same parsed; an empty value where there is none.
  absl::StatusOr<JsonValue> Json(const char* name, bool needed = false) {
    const absl::StatusOr<std::shared_ptr<const MappedFile>> text = Text(name);
    if (!text.ok()) return text.status();
    if (*text == nullptr) {
      if (!needed) return JsonValue();
      return absl::NotFoundError(absl::StrCat(path_, " has no ", name, ": it is no folder of a model"));
    }
    if ((*text)->bytes().size() > kMostTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat(In(name), ": it has more than ", kMostTextBytes, " bytes"));
    }
    return ParseJson((*text)->text(), absl::StrCat(In(name), ": the text"));
  }

  std::string Name(const JsonValue& config) const {
    const JsonValue* own = config.Find("_name_or_path");
    if (own == nullptr || own->text() == nullptr) return NameOf(path_);
    const absl::string_view whole = absl::StripSuffix(*own->text(), "/");
    const absl::string_view name = whole.substr(whole.rfind('/') + 1);
    return name.empty() || name == "." || name == ".." ? NameOf(path_) : std::string(name);
  }

  // The tokens that begin and end texts.
  absl::Status ReadEnds(const JsonValue& config) {
    const absl::StatusOr<JsonValue> generation = Json("generation_config.json");
    if (!generation.ok()) return generation.status();
    const JsonValue* text = config.Find("text_config");
    const JsonValue* const ends[] = {generation->Find("eos_token_id"), config.Find("eos_token_id"),
                                     text == nullptr ? nullptr : text->Find("eos_token_id")};
    for (size_t i = 0; i < 3; ++i) {
      if (ends[i] == nullptr || ends[i]->is_null()) continue;
      std::optional<std::vector<int64_t>> ids = Ids(*ends[i]);
      if (!ids) {
        return absl::InvalidArgumentError(absl::StrCat(In(i == 0 ? "generation_config.json" : "config.json"),
                                                       ": key eos_token_id must be a token's id, or an array of such"));
      }
      keys().Ints("tokenizer.ggml.eos_token_ids", *ids);
      break;
    }
    for (const JsonValue* object : {&config, text}) {
      const JsonValue* bos = object == nullptr ? nullptr : object->Find("bos_token_id");
      if (bos == nullptr || bos->integer() == nullptr || *bos->integer() < 0) continue;
      keys().Uint("tokenizer.ggml.bos_token_id", static_cast<uint64_t>(*bos->integer()));
      break;
    }
    return absl::OkStatus();
  }

  static std::optional<std::vector<int64_t>> Ids(const JsonValue& value) {
    std::vector<int64_t> ids;
    const JsonValue::Array one = {value};
    for (const JsonValue& id : value.array() == nullptr ? one : *value.array()) {
      if (id.integer() == nullptr || *id.integer() < 0) return std::nullopt;
      ids.push_back(*id.integer());
    }
    return ids;
  }

  absl::Status ReadTokenizer() {
    for (const auto& [key, name] : {std::pair("tokenizer.huggingface.json", "tokenizer.json"),
                                    {"tokenizer.huggingface.config", "tokenizer_config.json"},
                                    {"tokenizer.huggingface.special_tokens_map", "special_tokens_map.json"}}) {
      const absl::Status status = ReadText(key, name);
      if (!status.ok()) return status;
      if (!keys().values().contains(key)) file_->absent_.emplace(key, absl::StrCat(path_, " has no ", name));
    }
    const absl::StatusOr<JsonValue> config = TokenizerConfig();
    if (!config.ok()) return config.status();
    if (const JsonValue* ends = config->Find("add_eos_token"); ends != nullptr && ends->boolean() && *ends->boolean()) {
      file_->remarks_.push_back(absl::StrCat(
          In("tokenizer_config.json"),
          ": add_eos_token has no effect: a prompt is continued, so no token that ends texts is put behind it"));
    }
    return ReadTemplates(*config);
  }

  // Null where there is none.
  absl::StatusOr<JsonValue> TokenizerConfig() const {
    const auto found = kept_->keys.values().find("tokenizer.huggingface.config");
    if (found == kept_->keys.values().end()) return JsonValue();
    const absl::Span<const std::byte> bytes = found->second.bytes;
    const std::string where = In("tokenizer_config.json");
    if (bytes.size() > kMostTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": it has more than ", kMostTextBytes, " bytes"));
    }
    return ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, absl::StrCat(where, ": the text"));
  }

  // A text that becomes a key's value, where it is there.
  absl::Status ReadText(const char* key, const char* name) {
    const absl::StatusOr<std::shared_ptr<const MappedFile>> text = Text(name);
    if (text.ok() && *text != nullptr) keys().Text(key, (*text)->bytes());
    return text.status();
  }

  // As transformers' tokenizers find them: files of their own, or else what the configuration says; then as its
  // processors do. What cannot be used leaves the model without, for prompts need none.
  absl::Status ReadTemplates(const JsonValue& tokenizer_config) {
    for (const auto& [key, name] : {std::pair(kTemplate, "chat_template.jinja"),
                                    {kTemplate, "additional_chat_templates/default.jinja"},
                                    {kToolsTemplate, "additional_chat_templates/tool_use.jinja"}}) {
      const absl::Status status = ReadText(key, name);
      if (!status.ok()) return status;
    }
    if (HasTemplate() || HasOtherTemplates()) {
      file_->absent_.emplace(kTemplate,
                             absl::StrCat(path_, " has no chat template by default, in chat_template.jinja"));
      return absl::OkStatus();
    }
    KeepTemplates(tokenizer_config.Find("chat_template"));
    if (!HasTemplate()) ReadProcessorTemplate();
    file_->absent_.emplace(kTemplate, absl::StrCat(path_, " has no chat template"));
    return absl::OkStatus();
  }

  bool HasTemplate() const {
    return kept_->keys.values().contains(kTemplate) || kept_->keys.values().contains(kToolsTemplate);
  }

  // No request can choose these. But where they are, transformers does not look into the configuration.
  bool HasOtherTemplates() const {
    std::error_code none;
    const std::filesystem::directory_iterator folder(In("additional_chat_templates"), none);
    return !none && std::any_of(begin(folder), end(folder),
                                [](const auto& file) { return file.path().extension() == ".jinja"; });
  }

  // A text; or several with names, in an object or in an array of objects: `default`, and `tool_use` for chats with
  // tools.
  void KeepTemplates(const JsonValue* chat) {
    const auto keep = [this](const char* key, const JsonValue* text) {
      if (text != nullptr && text->text() != nullptr) keys().String(key, *text->text());
    };
    if (chat == nullptr) return;
    keep(kTemplate, chat);
    keep(kTemplate, chat->Find("default"));
    keep(kToolsTemplate, chat->Find("tool_use"));
    if (chat->array() == nullptr) return;
    for (const JsonValue& entry : *chat->array()) {
      const JsonValue* name = entry.Find("name");
      if (name == nullptr || name->text() == nullptr) continue;
      if (*name->text() == "default") keep(kTemplate, entry.Find("template"));
      if (*name->text() == "tool_use") keep(kToolsTemplate, entry.Find("template"));
    }
  }

  // Models that also see images keep their template in this file.
  void ReadProcessorTemplate() {
    constexpr char kName[] = "chat_template.json";
    const absl::StatusOr<JsonValue> whole = Json(kName);
    if (whole.ok() && whole->is_null()) return;
    if (whole.ok()) KeepTemplates(whole->Find("chat_template"));
    if (HasTemplate()) return;
    const std::string why = whole.ok() ? absl::StrCat(In(kName), ": key chat_template has no template")
                                       : std::string(whole.status().message());
    file_->absent_.emplace(kTemplate, why);
  }

  absl::Status ReadTensors(const HfModel& model) {
    absl::StatusOr<std::vector<FolderShard>> shards = OpenFolderWeights(path_);
    if (!shards.ok()) return shards.status();
    const HfNames names(model.architecture, model.layers, model.tied, model.biases);
    absl::flat_hash_map<std::string, std::string> stored;  // where each is, by GGUF's name
    for (FolderShard& shard : *shards) {
      for (const SafetensorsEntry& entry : shard.tensors.entries) {
        const absl::Status status = ReadTensor(names.Of(entry.name), entry, shard.path, stored);
        if (!status.ok()) return status;
      }
      file_->weight_files_.push_back(shard.mapped->bytes());
      for (std::string& remark : shard.remarks) file_->remarks_.push_back(std::move(remark));
      Keep(shard.path, std::move(shard.mapped), shard.tensors.head);
    }
    RemarkNamed(model);
    if (model.tied && !stored.contains(kEmbeddingTensor)) TakeHeadAsEmbedding(stored);
    if (model.tied) JudgeOwnHead();
    const auto has = [&](const std::string& name) { return stored.contains(name); };
    const HfNames without_biases(model.architecture, model.layers, model.tied);
    const std::optional<HfNames::Needed> missing = without_biases.FirstMissing(has);
    if (!missing) {
      if (const std::optional<HfNames::Needed> bias = names.FirstMissing(has)) {
        file_->remarks_.push_back(absl::StrCat(In("config.json"), ": biases are announced, and tensor '", bias->stored,
                                               "' is missing: such count as 0, as in transformers"));
      }
      return absl::OkStatus();
    }
    return absl::NotFoundError(
        absl::StrCat(path_, ": tensor '", missing->stored, "' (", missing->name, ") is missing"));
  }

  absl::Status ReadTensor(HfName name, const SafetensorsEntry& entry, const std::string& shard,
                          absl::flat_hash_map<std::string, std::string>& stored) {
    if (name.role == HfName::Role::kIgnored) {
      left_out_.Add(entry.name);
      return absl::OkStatus();
    }
    if (name.role == HfName::Role::kBeyond) {
      beyond_.Add(entry.name);
      return absl::OkStatus();
    }
    if (name.role == HfName::Role::kUnknown) {
      return absl::InvalidArgumentError(
          absl::StrCat(shard, ": tensor ", Quoted(entry.name),
                       " is none that the family knows; the model would compute without it"));
    }
    if (name.unannounced) unannounced_.Add(entry.name);
    absl::StatusOr<FileTensor> tensor = ToFileTensor(Rounded(entry), shard, std::move(name.name));
    if (!tensor.ok()) return tensor.status();
    const auto [other, is_new] = stored.emplace(tensor->name, tensor->stored_as);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor->stored_as, " and ", other->second, " are the same tensor"));
    }
    file_->tensors_.push_back(*std::move(tensor));
    return absl::OkStatus();
  }

  // In F32 where it is in F64, which nothing computes in.
  SafetensorsEntry Rounded(SafetensorsEntry entry) {
    if (entry.dtype != "F64") return entry;
    rounded_.Add(entry.name);
    kept_->rounded.push_back(RoundedToF32(entry.data));
    const std::vector<float>& floats = kept_->rounded.back();
    entry.dtype = "F32";
    entry.data = {reinterpret_cast<const std::byte*>(floats.data()), floats.size() * sizeof(float)};
    return entry;
  }

  // Of tensors that ReadTensor has come upon.
  void RemarkNamed(const HfModel& model) {
    const auto remark = [this](const Named& tensors, const std::string& where, const std::string& what) {
      if (tensors.count == 0) return;
      file_->remarks_.push_back(
          absl::StrCat(where, ": ", tensors.count, " tensors ", what, " (the first: ", Quoted(tensors.first), ")"));
    };
    remark(left_out_, path_, "are left out, for no part of the text model reads them");
    remark(beyond_, In("config.json"),
           absl::StrCat("are left out, for num_hidden_layers says that there are ", model.layers, " layers"));
    remark(rounded_, path_, "are F64 and rounded to F32, in memory of their own");
    remark(unannounced_, In("config.json"),
           "are biases that it does not announce: they are used, where transformers leaves them out");
  }

  FileTensor* TensorNamed(absl::string_view name) {
    const auto found = std::find_if(file_->tensors_.begin(), file_->tensors_.end(),
                                    [&](const FileTensor& tensor) { return tensor.name == name; });
    return found == file_->tensors_.end() ? nullptr : &*found;
  }

  // Of two that are one, a program that saves them may keep either. transformers from 5 on reads both kinds of folders.
  void TakeHeadAsEmbedding(absl::flat_hash_map<std::string, std::string>& stored) {
    FileTensor* const head = TensorNamed(kHeadTensor);
    if (head == nullptr) return;
    head->name = kEmbeddingTensor;
    stored.emplace(kEmbeddingTensor, head->stored_as);
    file_->remarks_.push_back(absl::StrCat(In("config.json"),
                                           ": tie_word_embeddings says that the head is the embedding, and only ",
                                           head->stored_as, " is there: it is both"));
  }

  // A head beside tie_word_embeddings is the embedding once more, which then is left out, or one of its own, which is
  // what the model was trained to: transformers from 5 on takes it, too.
  void JudgeOwnHead() {
    FileTensor *const head = TensorNamed(kHeadTensor), *const embedding = TensorNamed(kEmbeddingTensor);
    if (head == nullptr || embedding == nullptr) return;
    if (head->type == embedding->type && head->dims == embedding->dims &&
        std::memcmp(head->data.data(), embedding->data.data(), head->data.size()) == 0) {
      file_->tensors_.erase(file_->tensors_.begin() + (head - file_->tensors_.data()));
      return;
    }
    file_->remarks_.push_back(absl::StrCat(In("config.json"),
                                           ": tie_word_embeddings says that the head is the embedding, but ",
                                           head->stored_as, " differs from it: that head is used"));
  }

  const std::string path_;
  std::shared_ptr<ModelFile> file_;
  const std::shared_ptr<Kept> kept_;
  std::string hashed_;  // names, sizes and hashes of all files
  Named left_out_, beyond_, rounded_, unannounced_;
};

absl::StatusOr<std::shared_ptr<const ModelFile>> OpenFolder(const std::string& path) {
  absl::string_view trimmed = path;
  while (trimmed.size() > 1 && absl::ConsumeSuffix(&trimmed, "/")) {
  }
  return FolderReader(std::string(trimmed)).Read();
}

}  // namespace runahead
