#include "worker/format/folder_weights.h"

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/format/json_value.h"
#include "worker/format/quoted.h"

namespace runahead {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kSingleOfOne[] = "model-00001-of-00001.safetensors";  // as some tools call it; it needs no index
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMostShards = 4096;

using Names = std::set<absl::string_view>;

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

absl::StatusOr<FolderShard> OpenShard(const std::string& path) {
  FolderShard shard{.path = path, .mapped = nullptr, .tensors = {}};
  absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  shard.mapped = *std::move(mapped);
  absl::StatusOr<Safetensors> tensors = ReadSafetensors(path, shard.mapped->bytes());
  if (!tensors.ok()) return tensors.status();
  shard.tensors = *std::move(tensors);
  return shard;
}

// The index's tensors, by the file that has them. Views are of `index`.
absl::StatusOr<std::map<absl::string_view, Names>> ReadWeightMap(const std::string& path, const JsonValue& index) {
  const JsonValue* map = index.Find("weight_map");
  if (map == nullptr || map->object() == nullptr || map->object()->empty()) {
    return Refuse(path, "it has no weight_map, an object that names files");
  }
  std::map<absl::string_view, Names> by_file;
  for (const auto& [tensor, file] : *map->object()) {
    const std::string* name = file.text();
    if (name == nullptr || !IsPlainName(*name)) {
      return Refuse(path, absl::StrCat("weight_map has ", name == nullptr ? "no name of a file" : Quoted(*name),
                                       " for ", Quoted(tensor), "; it must be the name of a file in this folder"));
    }
    by_file[*name].insert(tensor);
    if (by_file.size() > kMostShards) return Refuse(path, absl::StrCat("it names more than ", kMostShards, " files"));
  }
  return by_file;
}

// As in transformers, what lies in a file counts, whatever the index says of it.
void CompareWithIndex(const std::string& index, Names listed, FolderShard& shard) {
  size_t unlisted = 0;
  std::string first;
  for (const SafetensorsEntry& entry : shard.tensors.entries) {
    if (listed.erase(entry.name) == 0 && unlisted++ == 0) first = entry.name;
  }
  const auto remark = [&](size_t tensors, absl::string_view named, absl::string_view what) {
    if (tensors == 0) return;
    const std::string more = tensors == 1 ? "" : absl::StrCat(" (and ", tensors - 1, " others)");
    shard.remarks.push_back(absl::StrCat(shard.path, ": tensor ", Quoted(named), more, what));
  };
  remark(unlisted, first, absl::StrCat(" is here, but ", index, " does not say so: the file counts"));
  remark(listed.size(), listed.empty() ? "" : *listed.begin(),
         absl::StrCat(" is not here, where ", index, " says it is: the file counts"));
}

absl::StatusOr<std::vector<FolderShard>> OpenShards(const std::string& folder, const MappedFile& mapped) {
  const std::string path = absl::StrCat(folder, "/", kIndex);
  const absl::StatusOr<JsonValue> index = ParseJson(mapped.text(), absl::StrCat(path, ": the text"));
  if (!index.ok()) return index.status();
  const absl::StatusOr<std::map<absl::string_view, Names>> by_file = ReadWeightMap(path, *index);
  if (!by_file.ok()) return by_file.status();
  std::vector<FolderShard> shards;
  for (const auto& [file, tensors] : *by_file) {
    absl::StatusOr<FolderShard> shard = OpenShard(absl::StrCat(folder, "/", file));
    if (absl::IsNotFound(shard.status())) {
      return absl::NotFoundError(absl::StrCat(folder, "/", file, " is missing, which ", path, " names"));
    }
    if (!shard.ok()) return shard.status();
    CompareWithIndex(kIndex, tensors, *shard);
    shards.push_back(*std::move(shard));
  }
  return shards;
}

// The folder's safetensors files, by name; an unreadable folder has none.
std::set<std::string> SafetensorsIn(const std::string& folder) {
  std::set<std::string> names;
  std::error_code gone;
  for (std::filesystem::directory_iterator entry(folder, gone), end; !gone && entry != end; entry.increment(gone)) {
    const std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) names.insert(name);
  }
  return names;
}

// The first file of the folder, by name, that is one of several with weights; empty where there is none.
std::string AnyPart(const std::string& folder) {
  for (const std::string& name : SafetensorsIn(folder)) {
    if (absl::StartsWith(name, "model-") && absl::StrContains(name, "-of-")) return name;
  }
  return "";
}

absl::StatusOr<std::vector<FolderShard>> OpenAll(const std::string& folder) {
  const auto one = [](absl::StatusOr<FolderShard> shard) -> absl::StatusOr<std::vector<FolderShard>> {
    if (!shard.ok()) return shard.status();
    std::vector<FolderShard> shards;
    shards.push_back(*std::move(shard));
    return shards;
  };
  absl::StatusOr<FolderShard> single = OpenShard(absl::StrCat(folder, "/", kSingle));
  if (!absl::IsNotFound(single.status())) return one(std::move(single));
  const absl::StatusOr<std::shared_ptr<const MappedFile>> index = OpenIfThere(absl::StrCat(folder, "/", kIndex));
  if (!index.ok()) return index.status();
  if (*index != nullptr) return OpenShards(folder, **index);
  single = OpenShard(absl::StrCat(folder, "/", kSingleOfOne));
  if (!absl::IsNotFound(single.status())) return one(std::move(single));
  const std::string part = AnyPart(folder);
  return absl::NotFoundError(
      part.empty()
          ? absl::StrCat(folder, " has neither ", kSingle, " nor ", kIndex, "; weights in other forms are not read")
          : absl::StrCat(folder, " has ", part, ", but not ", kIndex,
                         ", which says what lies in which file; fetch it, and all files that it names"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> OpenIfThere(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = MappedFile::Open(path);
  if (absl::IsNotFound(mapped.status())) return nullptr;
  return mapped;
}

absl::StatusOr<std::vector<FolderShard>> OpenFolderWeights(const std::string& folder) {
  absl::StatusOr<std::vector<FolderShard>> shards = OpenAll(folder);
  if (!shards.ok()) return shards;
  std::set<std::string> others = SafetensorsIn(folder);
  for (const FolderShard& shard : *shards) others.erase(std::filesystem::path(shard.path).filename().string());
  for (const std::string& name : others) {
    shards->front().remarks.push_back(
        absl::StrCat(folder, "/", name, " is not read: it is none of the files that hold the model's weights"));
  }
  return shards;
}

}  // namespace runahead
