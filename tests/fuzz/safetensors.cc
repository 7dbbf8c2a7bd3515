// A safetensors file.
#include "worker/format/safetensors.h"

#include "tests/fuzz/fuzz.h"

void runahead::Fuzz(std::string_view input) {
  const auto file = ReadSafetensors("m.safetensors", fuzz::AsBytes(input));
  if (!file.ok()) return fuzz::CheckRefusal(file.status(), "m.safetensors: ");
  // The tensors fill the file, one after the other.
  size_t bytes = file->head.size();
  for (const SafetensorsEntry& entry : file->entries) {
    bytes += entry.data.size();
    const auto tensor = ToFileTensor(entry, "m.safetensors", "x");
    if (!tensor.ok()) {
      fuzz::CheckRefusal(tensor.status(), "m.safetensors: ");
    } else {
      RUNAHEAD_CHECK(tensor->data.size() == WeightRowBytes(tensor->type, tensor->columns()) * tensor->rows());
    }
  }
  RUNAHEAD_CHECK(bytes == input.size());
}
