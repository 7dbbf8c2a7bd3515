#include "worker/format/folder_weights.h"

#include <map>
#include <set>
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

absl::Status CheckShard(const std::string& index, const FolderShard& shard, Names listed) {
  for (const SafetensorsEntry& entry : shard.tensors.entries) {
    if (listed.erase(entry.name) == 0) {
      return Refuse(shard.path,
                    absl::StrCat("tensor ", Quoted(entry.name), " is here, but ", index, " does not say so"));
    }
  }
  if (listed.empty()) return absl::OkStatus();
  return Refuse(shard.path,
                absl::StrCat("tensor ", Quoted(*listed.begin()), " is not here, where ", index, " says it is"));
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
    const absl::Status status = CheckShard(kIndex, *shard, tensors);
    if (!status.ok()) return status;
    shards.push_back(*std::move(shard));
  }
  return shards;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> OpenIfThere(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const MappedFile>> mapped = MappedFile::Open(path);
  if (absl::IsNotFound(mapped.status())) return nullptr;
  return mapped;
}

absl::StatusOr<std::vector<FolderShard>> OpenFolderWeights(const std::string& folder) {
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
  return absl::NotFoundError(
      absl::StrCat(folder, " has neither ", kSingle, " nor ", kIndex, "; weights in other forms are not read"));
}

}  // namespace runahead
