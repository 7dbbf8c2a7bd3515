#include "kernels/base/checks.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/check_parts.h"
#include "kernels/base/status_macros.h"

namespace runahead {

using check_parts::CheckAnyShape;
using check_parts::CheckHeads;
using check_parts::CoversBytes;
using check_parts::Invalid;

namespace {

constexpr DType kAnyDType[] = {DType::kF32, DType::kBF16, DType::kF16};

// Every index is a row of a tensor of `count` rows.
absl::Status CheckRowIndices(std::string_view name, const std::vector<int32_t>& rows, int64_t count) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= count) {
      return Invalid("index ", i, " is row ", rows[i], " of ", std::string(name), ", which has ", count);
    }
  }
  return absl::OkStatus();
}

// Weights that ops may take.
absl::Status CheckOnDevice(std::string_view name, const Weights& weights) {
  if (weights.home().buffer == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      std::string(name), " was loaded with kUseStreamed: copy it to the device and take what WeightsAt gives"));
}

absl::Status CheckSameDtype(const Tensor& x, const Tensor& out) {
  if (x.dtype == out.dtype) return absl::OkStatus();
  return Invalid("x is ", std::string(DTypeName(x.dtype)), " and out is ", std::string(DTypeName(out.dtype)));
}

// `quant` is a form that there is, and `ref` covers `rows` rows of n elements in it.
absl::Status CheckQuantized(std::string_view name, const BufferRef& ref, const KvQuant& quant, int64_t rows,
                            int64_t n) {
  if (quant.symmetric) {
    if (quant.bits != 8 && quant.bits != 16) return Invalid("X is quantised to 8 or 16 bits, not to ", quant.bits);
    if (quant.group != 32) return Invalid("X is quantised in groups of 32, not of ", quant.group);
  } else {
    if (quant.bits != 4 && quant.bits != 8) return Invalid("KV is quantised to 4 or 8 bits, not to ", quant.bits);
    if (quant.group != 32 && quant.group != 64 && quant.group != 128) {
      return Invalid("KV is quantised in groups of 32, 64 or 128, not of ", quant.group);
    }
  }
  if (n % quant.group != 0) return Invalid("rows of ", n, " elements are no whole groups of ", quant.group);
  const size_t bytes = rows * KvQuantRowBytes(n, quant);
  if (!CoversBytes(ref, bytes))
    return Invalid(std::string(name), " has ", ref.size, " bytes, and ", bytes, " are wanted");
  if (ref.offset % 4 != 0) return Invalid(std::string(name), " is at offset ", ref.offset, ", no multiple of 4");
  return absl::OkStatus();
}

// A NaN fails every comparison, so it is refused too.
absl::Status CheckSampleParams(size_t row, const SampleParams& params) {
  const auto require = [row](bool good, const char* field, double value, const char* range) {
    return good ? absl::OkStatus() : Invalid(field, " of row ", row, " is ", value, ", and must be ", range);
  };
  const float temperature = params.temperature;
  RUNAHEAD_RETURN_IF_ERROR(
      require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature, "0 or a positive number"));
  RUNAHEAD_RETURN_IF_ERROR(require(params.top_k >= 0, "top_k", params.top_k, "0 or more"));
  RUNAHEAD_RETURN_IF_ERROR(
      require(params.top_p > 0 && params.top_p <= 1, "top_p", params.top_p, "above 0 and at most 1"));
  RUNAHEAD_RETURN_IF_ERROR(require(params.min_p >= 0 && params.min_p <= 1, "min_p", params.min_p, "from 0 to 1"));
  const float repetition = params.repetition_penalty;
  RUNAHEAD_RETURN_IF_ERROR(
      require(repetition > 0 && std::isfinite(repetition), "repetition_penalty", repetition, "a positive number"));
  for (const float penalty : {params.presence_penalty, params.frequency_penalty}) {
    RUNAHEAD_RETURN_IF_ERROR(require(std::isfinite(penalty), "a penalty", penalty, "a number"));
  }
  return require(params.uniform >= 0 && params.uniform < 1, "uniform", params.uniform, "at least 0 and below 1");
}

absl::Status CheckTableRow(size_t row, const char* what, int64_t at, const Tensor& table) {
  if (at >= -1 && at < table.rows) return absl::OkStatus();
  return Invalid("row ", row, " has ", what, " in row ", at, " of ", table.rows);
}

// Ids of counts are there, and no row of them is written twice.
absl::Status CheckSampleCounts(const std::vector<SampleParams>& params, const MutTensor& counts, int64_t vocab) {
  std::vector<bool> written(counts.rows);
  for (size_t row = 0; row < params.size(); ++row) {
    const SampleParams& own = params[row];
    const int64_t at = own.counts_row;
    if (own.kept < 0 || own.kept > own.known || own.known > kMostTokenCounts) {
      return Invalid("row ", row, " keeps ", own.kept, " of ", own.known, " tokens, and at most ", kMostTokenCounts,
                     " may be known");
    }
    for (int32_t i = 0; i < own.known; ++i) {
      const auto [id, count] = own.tokens[i];
      if (id < 0 || id >= vocab) return Invalid("row ", row, " counts the id ", id, " of ", vocab);
      if (count < 0) return Invalid("row ", row, " counts the id ", id, " ", count, " times");
    }
    if (at < 0 || own.kept == 0) continue;
    if (written[at]) return Invalid("row ", row, " writes counts to row ", at, ", as a row before it");
    written[at] = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensor(std::string_view tensor_name, const Tensor& tensor, absl::Span<const DType> dtypes,
                         int64_t rows, int64_t cols) {
  const std::string name(tensor_name);  // Debian's absl does not take std::string_view
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::string wanted;
    for (DType dtype : dtypes) absl::StrAppend(&wanted, wanted.empty() ? "" : " or ", std::string(DTypeName(dtype)));
    return Invalid(name, " is ", std::string(DTypeName(tensor.dtype)), ", not ", wanted);
  }
  if (tensor.rows != rows || tensor.cols != cols) {
    return Invalid(name, " is [", tensor.rows, ", ", tensor.cols, "], not [", rows, ", ", cols, "]");
  }
  if (tensor.stride < tensor.cols) return Invalid(name, " has a stride of ", tensor.stride, " for ", cols, " columns");
  const int64_t elements = rows == 0 ? 0 : (rows - 1) * tensor.stride + cols;
  if (!CoversBytes(tensor.ref, elements * DTypeSize(tensor.dtype))) {
    return Invalid(name, " reaches beyond its buffer of ", tensor.ref.size, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckWeightSource(const WeightSource& source) {
  if (source.cols < 1) return Invalid("weights of ", source.cols, " columns");
  for (size_t i = 0; i < source.runs.size(); ++i) {
    const WeightRows& run = source.runs[i];
    if (run.rows < 1 || run.data == nullptr) {
      return Invalid("weight run ", i, " has ", run.rows, " rows", run.data == nullptr ? " and no data" : "");
    }
    const int block = BlockOf(run.type).elements;
    if (source.cols % block != 0) {
      return Invalid("weight run ", i, " is stored in blocks of ", block, ", and has ", source.cols, " columns");
    }
  }
  int64_t before = 0;
  for (const int64_t cut : source.cuts) {
    if (cut <= before || cut >= source.rows()) return Invalid("weights of ", source.rows(), " rows are cut at ", cut);
    before = cut;
  }
  return source.rows() < 1 ? Invalid("weights without rows") : absl::OkStatus();
}

absl::Status CheckCopy(const ConstBufferRef& from, const BufferRef& to) {
  if (from.size != to.size) return Invalid("a copy of ", from.size, " bytes to ", to.size, " bytes");
  if (!CoversBytes(from, from.size) || !CoversBytes(to, to.size)) return Invalid("a copy reaches beyond its buffer");
  return absl::OkStatus();
}

absl::Status CheckWeightsAt(const Weights& streamed, const BufferRef& slot) {
  const ConstBufferRef& home = streamed.home();
  if (home.buffer == nullptr) return Invalid("the weights have no home: load them with kUseStreamed");
  if (slot.buffer == nullptr || slot.size != home.size) {
    return Invalid("slot has ", slot.buffer == nullptr ? 0 : slot.size, " bytes, the weights ", home.size);
  }
  if (reinterpret_cast<uintptr_t>(slot.data()) % 64 != 0) return Invalid("slot does not begin at a multiple of 64");
  return absl::OkStatus();
}

absl::Status CheckEmbed(const Weights& table, const std::vector<int32_t>& ids, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckOnDevice("table", table));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("out", out, {DType::kF32}, ids.size(), table.cols()));
  for (int32_t id : ids) {
    if (id < 0 || id >= table.rows()) return Invalid("token id ", id, " of a table of ", table.rows());
  }
  return absl::OkStatus();
}

absl::Status CheckRmsNorm(const OpLimits& limits, const ConstTensor& x, const ConstTensor& weight,
                          const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, {DType::kF32}));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("weight", weight, {DType::kF32}, 1, x.cols));
  return CheckTensor("out", out, limits.dtypes, x.rows, x.cols);
}

absl::Status CheckHeadNorm(const MutTensor& x, int64_t head_dim, const ConstTensor& weight) {
  RUNAHEAD_RETURN_IF_ERROR(CheckHeads(x, head_dim, {DType::kF32}));
  return CheckTensor("weight", weight, {DType::kF32}, 1, head_dim);
}

absl::Status CheckLayerNorm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                            const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, {DType::kF32}));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("weight", weight, {DType::kF32}, 1, x.cols));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("bias", bias, {DType::kF32}, 1, x.cols));
  return CheckTensor("out", out, kAnyDType, x.rows, x.cols);
}

absl::Status CheckLinear(const OpLimits& limits, const ConstTensor& x, DType x_dtype, const Weights& w,
                         const LinearOptions& options, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckOnDevice("w", w));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("x", x, {x_dtype}, x.rows, w.cols()));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("out", out, limits.dtypes, x.rows, out.cols));
  if (out.cols < 1 || options.first_row < 0 || options.first_row > w.rows() - out.cols) {
    return Invalid("out has ", out.cols, " columns, from row ", options.first_row, " of ", w.rows(), " on");
  }
  const int64_t in_blocks = std::accumulate(options.blocks.begin(), options.blocks.end(), int64_t{0});
  if (!options.blocks.empty() && (options.batch_invariant || in_blocks != x.rows)) {
    return Invalid("blocks of ", in_blocks, " rows together, and x has ", x.rows,
                   options.batch_invariant ? "; a batch-invariant product has no blocks" : "");
  }
  if (options.bias.ref.buffer != nullptr) {
    RUNAHEAD_RETURN_IF_ERROR(CheckTensor("bias", options.bias, {DType::kF32}, 1, out.cols));
  }
  if (!options.accumulate) return absl::OkStatus();
  if (out.dtype != DType::kF32) return Invalid("Linear accumulates in f32 only");
  if (options.activation.has_value()) return Invalid("Linear takes no activation of what it adds to");
  return absl::OkStatus();
}

absl::Status CheckGatedActivate(const OpLimits& limits, const ConstTensor& gate_up, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("gate_up", gate_up, limits.dtypes, gate_up.rows, 2 * out.cols));
  return CheckTensor("out", out, limits.dtypes, gate_up.rows, out.cols);
}

absl::Status CheckActivate(const ConstTensor& x, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, kAnyDType));
  return CheckTensor("out", out, kAnyDType, x.rows, x.cols);
}

absl::Status CheckScale(const ConstTensor& x, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, {DType::kF32}));
  return CheckTensor("out", out, {DType::kF32}, x.rows, x.cols);
}

absl::Status CheckSoftCap(const MutTensor& x, float cap) {
  if (!(cap > 0)) return Invalid("a soft cap of ", cap, "; it is above 0");
  return CheckAnyShape("x", x, {DType::kF32});
}

absl::Status CheckGatherRows(const ConstTensor& x, const std::vector<int32_t>& rows, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, kAnyDType));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("out", out, kAnyDType, rows.size(), x.cols));
  RUNAHEAD_RETURN_IF_ERROR(CheckSameDtype(x, out));
  return CheckRowIndices("x", rows, x.rows);
}

absl::Status CheckExchangeRows(const ConstTensor& x, const std::vector<RowMove>& rows, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, kAnyDType));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("out", out, kAnyDType, out.rows, x.cols));
  RUNAHEAD_RETURN_IF_ERROR(CheckSameDtype(x, out));
  std::vector<int32_t> from, to;
  for (const RowMove& row : rows) from.push_back(row.from), to.push_back(row.to);
  RUNAHEAD_RETURN_IF_ERROR(CheckRowIndices("x", from, x.rows));
  return CheckRowIndices("out", to, out.rows);
}

absl::Status CheckQuantizeKv(const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("rows", rows, kAnyDType));
  return CheckQuantized("out", out, quant, rows.rows, rows.cols);
}

absl::Status CheckDequantizeKv(const ConstBufferRef& from, const KvQuant& quant, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("out", out, kAnyDType));
  return CheckQuantized("from", from, quant, out.rows, out.cols);
}

absl::Status CheckTopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
                       const MutTensor& log_sum) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("logits", logits, {DType::kF32}));
  const int64_t most = std::min(kMostTopK, logits.cols);
  if (k < 1 || k > most) {
    return Invalid("the top ", k, " of ", logits.cols, " logits; k is at least 1 and at most ", most);
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("ids", ids, {DType::kF32}, logits.rows, k));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("values", values, {DType::kF32}, logits.rows, k));
  return CheckTensor("log_sum", log_sum, {DType::kF32}, logits.rows, 1);
}

absl::Status CheckSample(const OpLimits& limits, const ConstTensor& logits, const std::vector<SampleParams>& params,
                         const SampleTables& tables, const MutTensor& ids, const MutTensor& values) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("logits", logits, {DType::kF32}, params.size(), logits.cols));
  if (logits.cols < 1 || logits.cols > limits.most_vocab) {
    return Invalid("a draw from ", logits.cols, " logits; at least 1 and at most ", limits.most_vocab);
  }
  const auto check_table = [](const char* name, const Tensor& table, int64_t cols) {
    return table.rows == 0 ? absl::OkStatus() : CheckTensor(name, table, {DType::kF32}, table.rows, cols);
  };
  RUNAHEAD_RETURN_IF_ERROR(check_table("counts", tables.counts, logits.cols));
  RUNAHEAD_RETURN_IF_ERROR(check_table("bias", tables.bias, logits.cols));
  RUNAHEAD_RETURN_IF_ERROR(check_table("allowed", tables.allowed, MaskWords(logits.cols)));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("ids", ids, {DType::kF32}, logits.rows, 1));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("values", values, {DType::kF32}, logits.rows, 1));
  for (size_t row = 0; row < params.size(); ++row) {
    const SampleParams& own = params[row];
    RUNAHEAD_RETURN_IF_ERROR(CheckSampleParams(row, own));
    RUNAHEAD_RETURN_IF_ERROR(CheckTableRow(row, "a bias", own.bias_row, tables.bias));
    RUNAHEAD_RETURN_IF_ERROR(CheckTableRow(row, "a mask", own.allowed_row, tables.allowed));
    RUNAHEAD_RETURN_IF_ERROR(CheckTableRow(row, "counts", own.counts_row, tables.counts));
  }
  return CheckSampleCounts(params, tables.counts, logits.cols);
}

}  // namespace runahead
