// cuBLASLt knows columns only: out [t, n] in rows is D [n, t] in columns = w^T (k x n, transposed) * x (k x t).
#include <cublasLt.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

// What cuBLAS's own documentation asks for on Hopper; older GPUs take less.
constexpr size_t kWorkspaceBytes = 32 << 20;
// Batch-invariant kernels are chosen for so many rows, and take every other number of rows too. A tile for fewer would
// have a batch of 128 read the weights many times; this one's arithmetic for a single row still hides behind reading.
constexpr int64_t kInvariantRows = 64;
// Products in blocks have thousands of rows.
constexpr int64_t kRowsInBlocks = 4096;
constexpr int kInvariantChoices = 8;

absl::Status Check(cublasStatus_t code, const char* what) {
  if (code == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(code)));
}

cudaDataType_t CudaType(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

bool IsInvariant(const GemmShape& shape) {
  return shape.batch_invariant || shape.in_blocks;
}

// cuBLASLt takes a bias of the result's own type only, where ours is f32. For thousands of rows, whose sums in f32
// would pass through memory, ours is rounded to it.
bool RoundsBias(const GemmShape& shape) {
  return shape.in_blocks && shape.bias && shape.out_dtype != DType::kF32;
}

// Whether one kernel can do all that follows the product: cuBLASLt has two of the activations, its GELU by tanh.
bool Fusable(const GemmShape& shape) {
  const bool activation_known = !shape.activation.has_value() || shape.activation == Activation::kRelu ||
                                shape.activation == Activation::kGeluTanh;
  return activation_known && (!shape.bias || shape.out_dtype == DType::kF32 || RoundsBias(shape));
}

// Of what is fusable.
cublasLtEpilogue_t EpilogueOf(const GemmShape& shape) {
  const bool relu = shape.activation == Activation::kRelu, gelu = shape.activation == Activation::kGeluTanh;
  if (shape.bias)
    return relu ? CUBLASLT_EPILOGUE_RELU_BIAS : gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return relu ? CUBLASLT_EPILOGUE_RELU : gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT;
}

// The descriptors of one product; owns them.
struct Description {
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;

  Description() = default;
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  ~Description() {
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (matmul != nullptr) cublasLtMatmulDescDestroy(matmul);
  }

  absl::Status Fill(const GemmShape& shape) {
    const cudaDataType_t in = CudaType(shape.dtype), result = CudaType(shape.out_dtype), f32 = CUDA_R_32F;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RUNAHEAD_RETURN_IF_ERROR(Check(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, f32), "describing a product"));
    RUNAHEAD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    RUNAHEAD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape)));
    if (shape.bias) {
      RUNAHEAD_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, RoundsBias(shape) ? result : f32));
    }
    RUNAHEAD_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&w, in, shape.k, shape.n, shape.k), "weights"));
    RUNAHEAD_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&x, in, shape.k, shape.m, shape.x_stride), "input"));
    return Check(cublasLtMatrixLayoutCreate(&out, result, shape.n, shape.m, shape.out_stride), "output");
  }

  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return Check(cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof(value)), "describing a product");
  }
};

// A kernel, and whether it does all that follows the product.
struct LtChoice {
  cublasLtMatmulAlgo_t algorithm = {};
  bool fused = true;
};

class LtPlan final : public GemmPlan {
 public:
  LtPlan(cublasLtHandle_t handle, const GemmShape& shape) : GemmPlan(shape), handle_(handle) {}

  size_t workspace_bytes() const override {
    if (!choice_.fused) return BehindWorkspace() + SumBytes(shape_);
    return RoundsBias(shape_) ? BehindWorkspace() + static_cast<size_t>(shape_.n) * DTypeSize(shape_.out_dtype)
                              : workspace_;
  }

  // The descriptor holds the bias's address, so each run has a copy of it.
  cudaError_t Run(const GemmOperands& operands, cudaStream_t stream) const override {
    cublasLtMatmulDescOpaque_t with_bias = *description_.matmul;
    const void* bias = operands.bias;
    if (choice_.fused && RoundsBias(shape_)) {
      void* const rounded = static_cast<std::byte*>(operands.workspace) + BehindWorkspace();
      if (const cudaError_t code = RoundBias(operands.bias, rounded, stream); code != cudaSuccess) return code;
      bias = rounded;
    }
    if (choice_.fused && shape_.bias &&
        cublasLtMatmulDescSetAttribute(&with_bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)) !=
            CUBLAS_STATUS_SUCCESS) {
      return cudaErrorInvalidValue;
    }
    const bool apart = !choice_.fused && SumBytes(shape_) != 0;
    void* const out = apart ? static_cast<std::byte*>(operands.workspace) + BehindWorkspace() : operands.out;
    const float one = 1.0f, beta = shape_.accumulate ? 1.0f : 0.0f;
    const cublasStatus_t code = cublasLtMatmul(handle_, &with_bias, &one, operands.w, description_.w, operands.x,
                                               description_.x, &beta, out, description_.out, out, description_.out,
                                               &choice_.algorithm, operands.workspace, workspace_, stream);
    if (code != CUBLAS_STATUS_SUCCESS) {
      std::fprintf(stderr, "cuBLASLt: a product of [%lld, %lld] and [%lld, %lld]: %s\n",
                   static_cast<long long>(shape_.m), static_cast<long long>(shape_.k), static_cast<long long>(shape_.n),
                   static_cast<long long>(shape_.k), cublasLtGetStatusString(code));
      return cudaErrorLaunchFailure;
    }
    return choice_.fused ? cudaSuccess : FinishGemm(shape_, operands, out, stream);
  }

  // Kernels, best first: with all that follows the product fused into them where there are such, and behind them, when
  // more than one is asked for, without.
  absl::StatusOr<std::vector<LtChoice>> Choices(int most) {
    std::vector<LtChoice> choices;
    if (Fusable(shape_)) {
      absl::StatusOr<std::vector<LtChoice>> fused = Ask(true, most);
      if (EpilogueOf(shape_) == CUBLASLT_EPILOGUE_DEFAULT) return fused;
      if (fused.ok()) choices = *std::move(fused);
    }
    if (!choices.empty() && most == 1) return choices;
    absl::StatusOr<std::vector<LtChoice>> unfused = Ask(false, most);
    if (!unfused.ok() && choices.empty()) return unfused;
    if (unfused.ok()) choices.insert(choices.end(), unfused->begin(), unfused->end());
    return choices;
  }

  absl::Status Take(const LtChoice& choice) {
    RUNAHEAD_RETURN_IF_ERROR(Describe(choice.fused));
    cublasLtMatmulHeuristicResult_t found = {};
    RUNAHEAD_RETURN_IF_ERROR(
        Check(cublasLtMatmulAlgoCheck(handle_, description_.matmul, description_.w, description_.x, description_.out,
                                      description_.out, &choice.algorithm, &found),
              "taking a kernel"));
    choice_ = choice;
    workspace_ = found.workspaceSize;
    return absl::OkStatus();
  }

 private:
  // Where unfused sums, or a rounded bias, begin in the workspace.
  size_t BehindWorkspace() const { return (workspace_ + 255) / 256 * 256; }

  cudaError_t RoundBias(const float* bias, void* rounded, cudaStream_t stream) const {
    const CudaMatrix from{const_cast<float*>(bias), DType::kF32, 1, shape_.n, shape_.n};
    return LaunchBias(from, nullptr, std::nullopt, {rounded, shape_.out_dtype, 1, shape_.n, shape_.n}, stream);
  }

  absl::Status Describe(bool fused) {
    description_.~Description();
    new (&description_) Description();
    RUNAHEAD_RETURN_IF_ERROR(description_.Fill(fused ? shape_ : ProductAlone(shape_)));
    if (!fused || !shape_.bias) return absl::OkStatus();
    // Which kernels there are depends on how the bias is aligned: an address that says just that.
    return description_.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<uintptr_t>(shape_.alignment));
  }

  absl::StatusOr<std::vector<LtChoice>> Ask(bool fused, int most) {
    RUNAHEAD_RETURN_IF_ERROR(Describe(fused));
    cublasLtMatmulPreference_t preference = nullptr;
    RUNAHEAD_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&preference), "asking for a kernel"));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, IsInvariant(shape_) ? size_t{0} : kWorkspaceBytes);
    // Sums are f32 also where parts of them are summed apart; it may else add them up in the output's type.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t{IsInvariant(shape_) ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(what, static_cast<uint32_t>(shape_.alignment));
    }
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(shape_.w_alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> found(most);
    int count = 0;
    const cublasStatus_t code =
        cublasLtMatmulAlgoGetHeuristic(handle_, description_.matmul, description_.w, description_.x, description_.out,
                                       description_.out, preference, most, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    RUNAHEAD_RETURN_IF_ERROR(Check(code, "asking for a kernel"));
    std::vector<LtChoice> choices;
    for (int i = 0; i < count; ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) choices.push_back({found[i].algo, fused});
    }
    if (choices.empty()) return absl::InternalError("cuBLASLt has no kernel for this product");
    return choices;
  }

  const cublasLtHandle_t handle_;
  Description description_;
  LtChoice choice_;
  size_t workspace_ = 0;  // of the kernel
};

class LtPlanner final : public GemmPlanner {
 public:
  explicit LtPlanner(cublasLtHandle_t handle) : handle_(handle) {}
  ~LtPlanner() override { cublasLtDestroy(handle_); }

  absl::StatusOr<std::shared_ptr<const GemmPlan>> Plan(const GemmShape& shape) override {
    auto plan = std::make_shared<LtPlan>(handle_, shape);
    if (IsInvariant(shape)) {
      RUNAHEAD_ASSIGN_OR_RETURN(const LtChoice* const choice, Invariant(shape));
      RUNAHEAD_RETURN_IF_ERROR(plan->Take(*choice));
    } else {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<LtChoice> choices, plan->Choices(1));
      RUNAHEAD_RETURN_IF_ERROR(plan->Take(choices.front()));
    }
    return plan;
  }

 private:
  // The one kernel for all shapes that differ in their rows and strides, and in which rows of the weights they
  // multiply: the first that takes few rows and many. Rows of weights are as far from each other as from the first, so
  // they are aligned as that kernel wants.
  absl::StatusOr<const LtChoice*> Invariant(GemmShape shape) {
    shape.m = shape.in_blocks ? kRowsInBlocks : kInvariantRows;
    if (shape.w_rows > 0) shape.n = std::exchange(shape.w_rows, 0);
    shape.w_alignment = GemmShape().w_alignment;
    shape.x_stride = shape.k;
    shape.out_stride = shape.n;
    std::unique_ptr<LtChoice>& known = invariant_[shape];
    if (known != nullptr) return known.get();
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<LtChoice> choices, LtPlan(handle_, shape).Choices(kInvariantChoices));
    for (const LtChoice& choice : choices) {
      if (!TakesAllRows(choice, shape)) continue;
      known = std::make_unique<LtChoice>(choice);
      return known.get();
    }
    return absl::InternalError("cuBLASLt has no kernel that takes this product for every number of rows");
  }

  bool TakesAllRows(const LtChoice& choice, GemmShape shape) const {
    for (const int64_t rows : {1, 16, 64, 128, 512}) {
      shape.m = rows;
      if (!LtPlan(handle_, shape).Take(choice).ok()) return false;
    }
    return true;
  }

  const cublasLtHandle_t handle_;
  absl::flat_hash_map<GemmShape, std::unique_ptr<LtChoice>> invariant_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmPlanner>> NewGemmPlanner() {
  cublasLtHandle_t handle = nullptr;
  RUNAHEAD_RETURN_IF_ERROR(Check(cublasLtCreate(&handle), "starting"));
  return std::make_unique<LtPlanner>(handle);
}

}  // namespace runahead
