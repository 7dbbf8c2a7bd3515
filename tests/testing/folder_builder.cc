#include "tests/testing/folder_builder.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace runahead {

std::string SafetensorsImage(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&length), sizeof(length)), header, data);
}

FolderBuilder::FolderBuilder(std::string path) : path_(std::move(path)) {
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
}

void FolderBuilder::Text(const std::string& name, const std::string& content) const {
  std::ofstream out(absl::StrCat(path_, "/", name), std::ios::binary | std::ios::trunc);
  out << content;
  out.close();
  RUNAHEAD_CHECK(out.good());
}

void FolderBuilder::Tensor(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                           std::string data) {
  tensors_.push_back({name, dtype, shape, std::move(data)});
}

void FolderBuilder::WriteTensors(int shards, int spaces) const {
  std::vector<std::string> weight_map;
  for (int shard = 0; shard < shards; ++shard) {
    const std::string file =
        shards == 1 ? "model.safetensors" : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards);
    std::vector<std::string> entries;
    std::string data;
    for (size_t i = shard; i < tensors_.size(); i += shards) {
      const Stored& tensor = tensors_[i];
      const size_t begin = data.size();
      data += tensor.data;
      entries.push_back(absl::StrFormat(R"("%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]})", tensor.name,
                                        tensor.dtype, absl::StrJoin(tensor.shape, ","), begin, data.size()));
      weight_map.push_back(absl::StrFormat(R"("%s":"%s")", tensor.name, file));
    }
    const std::string header = absl::StrCat(R"({"__metadata__":{"format":"pt"}, )", absl::StrJoin(entries, ", "), "}");
    Text(file, SafetensorsImage(header + std::string(spaces, ' '), data));
  }
  if (shards == 1) return;
  Text("model.safetensors.index.json",
       absl::StrCat(R"({"metadata":{"total_size":0},"weight_map":{)", absl::StrJoin(weight_map, ","), "}}"));
}

}  // namespace runahead
