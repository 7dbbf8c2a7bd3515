#include "worker/model/load_plan.h"

#include "kernels/base/device.h"

namespace runahead {

int64_t LoadPlan::elements() const {
  int64_t sum = 0;
  for (const Matrix& matrix : matrices) sum += matrix.elements();
  return sum;
}

WeightBytes BytesOnCpu(const LoadPlan& plan, DType compute, bool int8, unsigned uses) {
  WeightBytes bytes;
  for (const LoadPlan::Matrix& matrix : plan.matrices) {
    if (int8 && matrix.quantised) {
      bytes.int8 += matrix.stored_bytes;
      continue;
    }
    const unsigned forms = matrix.of_layer ? uses : unsigned{kUseDecode};
    if ((forms & kUseDecode) != 0) bytes.stored += matrix.stored_bytes;
    if ((forms & kUsePrefill) != 0) bytes.packed += matrix.elements() * DTypeSize(compute);
  }
  return bytes;
}

WeightBytes BytesOnGpu(const LoadPlan& plan, DType compute) {
  return {.packed = static_cast<size_t>(plan.elements()) * DTypeSize(compute)};
}

}  // namespace runahead
