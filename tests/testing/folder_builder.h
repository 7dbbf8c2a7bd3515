// Writes Hugging Face folders for tests: well-formed ones, and on demand hostile ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace runahead {

// A safetensors file of this header and these bytes behind it. Checks nothing.
std::string SafetensorsImage(const std::string& header, const std::string& data);

// Collects files and tensors of one folder. Checks nothing: what goes in comes out. What cannot be written fails the
// CHECK.
class FolderBuilder {
 public:
  // Makes the folder; what is in it from before goes.
  explicit FolderBuilder(std::string path);

  const std::string& path() const { return path_; }

  // A file of the folder, at once.
  void Text(const std::string& name, const std::string& content) const;

  // `shape` in safetensors' order (columns last), `data` as that dtype takes it.
  void Tensor(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape, std::string data);

  // model.safetensors; from two shards on that many files, which take turns, and the index. Each header is followed by
  // so many spaces: one makes the data lie unaligned.
  void WriteTensors(int shards = 1, int spaces = 0) const;

 private:
  struct Stored {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::string data;
  };

  std::string path_;
  std::vector<Stored> tensors_;
};

}  // namespace runahead
