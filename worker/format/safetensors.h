// The header of safetensors files: which tensors there are, and where their bytes lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/format/model_file.h"

namespace runahead {

// One tensor as the file has it, of whatever type and shape.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as the file calls it: "BF16"
  std::vector<int64_t> shape;  // the last varies fastest; none of them: a scalar
  absl::Span<const std::byte> data;
};

struct Safetensors {
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  absl::Span<const std::byte> head;       // length and header
};

// Of a file's image, which is called `path` in errors; views are of `bytes`. Checks the whole header before anything
// else: lengths, shapes against bytes, that tensors fill the file one after the other, names. INVALID_ARGUMENT says
// where. Takes a small multiple of the header's size of memory, whatever is in it.
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path, absl::Span<const std::byte> bytes);

// Elements of F64, each rounded to the f32 nearest to it, as transformers does; what is too large becomes infinite.
std::vector<float> RoundedToF32(absl::Span<const std::byte> doubles);

// The entry under GGUF's `name`. INVALID_ARGUMENT for what no model of ours has: another type than F32, F16 and BF16,
// not 1 to 4 dimensions, no elements.
absl::StatusOr<FileTensor> ToFileTensor(const SafetensorsEntry& entry, const std::string& path, std::string name);

}  // namespace runahead
