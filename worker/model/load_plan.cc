#include "worker/model/load_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/superblock.h"

namespace runahead {
namespace {

// Of a quantised type's block of a row, as CPUs multiply it in 8 bits: of a superblock they keep each scale and min in
// a byte.
size_t Int8BlockBytes(WeightType type) {
  if (!IsSuperblock(type)) return BlockOf(type).bytes;
  const int scales = kSuperblock / SuperblockScaleColumns(type) * (SuperblockHasMin(type) ? 2 : 1);
  return BlockOf(type).bytes + scales * (8 - SuperblockPartsOf(type).scale_bits) / 8;
}

// Sixteen rows lie together (kernels/cpu/int8/product.h).
size_t Int8Bytes(const LoadPlan::Matrix::Run& run, int64_t cols) {
  return RoundUp(run.rows, 16) * (cols / BlockOf(run.type).elements) * Int8BlockBytes(run.type);
}

// Superblocks lie as for products in 8 bits. Of other types four rows lie together, in blocks of 32 columns: scales,
// then elements, each at a multiple of 64 bytes (kernels/cpu/stored_form.h).
size_t StoredBytes(const LoadPlan::Matrix::Run& run, int64_t cols) {
  if (IsSuperblock(run.type)) return Int8Bytes(run, cols);
  const size_t blocks = 4 * ((cols + 31) / 32), scales = BlockOf(run.type).scale_bytes();
  const size_t group = RoundUp(blocks * scales, 64) + RoundUp(blocks * (WeightRowBytes(run.type, 32) - scales), 64);
  return RoundUp(run.rows, 4) / 4 * group;
}

WeightBytes BytesOnCpu(const LoadPlan::Matrix& matrix, DType compute, bool int8, unsigned uses) {
  WeightBytes bytes;
  const bool in_8_bits = int8 && matrix.has_int8_form();
  const unsigned forms = matrix.of_layer ? uses : unsigned{kUseDecode};
  for (const LoadPlan::Matrix::Run& run : matrix.runs) {
    if (in_8_bits) bytes.int8 += Int8Bytes(run, matrix.cols);
    if (!in_8_bits && (forms & kUseDecode) != 0) bytes.stored += StoredBytes(run, matrix.cols);
  }
  // Forms begin and end at multiples of 64 bytes.
  bytes.int8 = RoundUp(bytes.int8, 64);
  bytes.stored = RoundUp(bytes.stored, 64);
  if (!in_8_bits && (forms & kUsePrefill) != 0) bytes.packed += matrix.elements() * DTypeSize(compute);
  return bytes;
}

}  // namespace

void LoadPlan::Matrix::Add(WeightType type, int64_t rows) {
  if (runs.empty() || runs.back().type != type) runs.push_back({type, 0});
  runs.back().rows += rows;
}

int64_t LoadPlan::Matrix::elements() const {
  int64_t rows = 0;
  for (const Run& run : runs) rows += run.rows;
  return rows * cols;
}

size_t LoadPlan::Matrix::file_bytes() const {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.rows * WeightRowBytes(run.type, cols);
  return bytes;
}

bool LoadPlan::Matrix::has_int8_form() const {
  return std::all_of(runs.begin(), runs.end(), [](const Run& run) { return HasInt8Form(run.type); });
}

bool LoadPlan::Matrix::quantised() const {
  return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return !IsPlain(run.type); });
}

int64_t LoadPlan::elements() const {
  int64_t sum = 0;
  for (const Matrix& matrix : matrices) sum += matrix.elements();
  return sum;
}

WeightBytes BytesOnCpu(const LoadPlan& plan, DType compute, bool int8, unsigned uses) {
  WeightBytes bytes;
  for (const LoadPlan::Matrix& matrix : plan.matrices) bytes += BytesOnCpu(matrix, compute, int8, uses);
  return bytes;
}

WeightBytes BytesOnGpu(const LoadPlan& plan, DType compute) {
  return {.packed = static_cast<size_t>(plan.elements()) * DTypeSize(compute)};
}

std::string LeftOutOfInt8(const LoadPlan& plan, unsigned uses) {
  constexpr double kMiB = 1 << 20;
  int matrices = 0;
  size_t takes = 0, in_file = 0;
  std::string first;
  for (const LoadPlan::Matrix& matrix : plan.matrices) {
    if (!matrix.quantised() || matrix.has_int8_form()) continue;
    first = matrices++ == 0 ? matrix.name : std::min(first, matrix.name);  // layers are planned in any order
    takes += BytesOnCpu(matrix, DType::kF32, true, uses).total();
    in_file += matrix.file_bytes();
  }
  if (matrices == 0) return "";
  return absl::StrFormat(
      "%d %s in f32, not in 8 bits, for not all of the tensors that make one up are of a type for that (the first: "
      "%s): %.1f "
      "MiB, in the file %.1f, at the speed of dtype f32",
      matrices, matrices == 1 ? "matrix is multiplied" : "matrices are multiplied", first, takes / kMiB,
      in_file / kMiB);
}

}  // namespace runahead
