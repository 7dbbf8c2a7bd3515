// Gemm in f32 on AVX2, where oneDNN's reaches less than half of the multiply-adds' peak on large matrices.
#pragma once

#include <memory>

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/gemm.h"

namespace runahead {

// Needs AVX2 and FMA. Rows of the result do not depend on the rows beside them.
std::unique_ptr<Gemm> NewPanelGemm(ThreadPool& pool);

}  // namespace runahead
