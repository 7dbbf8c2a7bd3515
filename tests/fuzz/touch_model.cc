#include "tests/fuzz/touch_model.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "worker/format/dequantize.h"

namespace runahead::fuzz {
namespace {

template <typename T>
bool Good(const absl::StatusOr<T>& value) {
  if (!value.ok()) CheckRefusal(value.status(), "");
  return value.ok();
}

void TouchEntry(const ModelFile& file, const ModelFile::Entry& entry) {
  RUNAHEAD_CHECK(file.Has(entry.key));
  // A value has one type. An array without elements may be of any.
  int types = 0;
  types += Good(file.GetString(entry.key));
  types += Good(file.GetUint(entry.key));
  if (const auto number = file.GetFloat(entry.key); Good(number)) {
    RUNAHEAD_CHECK(std::isfinite(*number));
    ++types;
  }
  types += Good(file.GetBool(entry.key));
  types += Good(file.GetStrings(entry.key));
  types += Good(file.GetInts(entry.key));
  types += Good(file.GetFloats(entry.key));
  types += Good(file.GetBools(entry.key));
  RUNAHEAD_CHECK(types <= 1 || entry.value.count == 0);
}

void TouchTensor(const ModelFile& file, const FileTensor& tensor) {
  RUNAHEAD_CHECK(*file.FindTensor(tensor.name) == &tensor);
  const auto row_bytes = static_cast<int64_t>(WeightRowBytes(tensor.type, tensor.columns()));
  RUNAHEAD_CHECK(static_cast<int64_t>(tensor.data.size()) == row_bytes * tensor.rows());
  std::vector<float> row(static_cast<size_t>(tensor.columns()));
  for (const int64_t at : {int64_t{0}, tensor.rows() - 1}) {
    DequantizeRow(tensor.type, tensor.data.data() + at * row_bytes, tensor.columns(), row.data());
  }
}

}  // namespace

void TouchModel(const ModelFile& file) {
  for (const ModelFile::Entry& entry : file.Entries("")) TouchEntry(file, entry);
  for (const FileTensor& tensor : file.tensors()) TouchTensor(file, tensor);
  for (const std::string& remark : file.remarks()) RUNAHEAD_CHECK(!remark.empty());
  RUNAHEAD_CHECK(!file.Has("no such key") && Good(file.FindTensor("no such tensor")) == false);
  RUNAHEAD_CHECK(file.tokenizer_fingerprint() == file.tokenizer_fingerprint());
  (void)CheckTakesInt8(file).ok();
}

}  // namespace runahead::fuzz
