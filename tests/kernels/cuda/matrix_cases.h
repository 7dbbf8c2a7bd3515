// For tests of kernels from a matrix to a matrix: the types, widths and places that each is tried with.
#pragma once

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {

inline std::string CaseName(DType in, DType out, int64_t cols, const Placement& placement) {
  return absl::StrCat(std::string(DTypeName(in)), " to ", std::string(DTypeName(out)), ", ", cols, " columns, gap ",
                      placement.gap, ", offset ", placement.offset);
}

// Calls body(in, out, cols, placement) until one fails. Less than a warp, a block and a step of it, odd and even.
template <typename Body>
void ForAllCases(const Body& body) {
  for (const DType in : kAllDTypes) {
    for (const DType out : kAllDTypes) {
      for (const int64_t cols : {1, 3, 16, 129, 257, 1024, 1031, 2052}) {
        for (const Placement& placement : kPlacements) {
          SCOPED_TRACE(CaseName(in, out, cols, placement));
          body(in, out, cols, placement);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// `out` rounds values that were computed in f32 with a relative error of some `steps` * 2^-24 of `magnitude`.
inline void ExpectElement(const GpuMatrix& out, int64_t row, int64_t col, double want, double magnitude, double steps) {
  const double tolerance = std::fabs(want) * Epsilon(out.dtype()) + magnitude * steps * 0x1p-24 + 0x1p-25;
  ASSERT_NEAR(out.at(row, col), want, tolerance) << "row " << row << ", column " << col;
}

}  // namespace runahead
