// Of checks.h: layouts, and the ops that take a KV table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/check_parts.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {

using check_parts::CheckAnyShape;
using check_parts::CheckHeads;
using check_parts::CoversBytes;
using check_parts::Invalid;

namespace {

// Positions and rows of a page are 32 bits on devices.
constexpr int64_t kMostKvRows = std::numeric_limits<int32_t>::max();

// Head counts and sizes are positive and divide each other, head_dim is even, KV is in a dtype of the device, window
// and soft cap are none or positive.
absl::Status CheckAttentionShape(const OpLimits& limits, const AttentionShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    return Invalid(shape.heads, " heads cannot share ", shape.kv_heads, " KV heads");
  }
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0) return Invalid("head_dim is ", shape.head_dim, ", not even");
  if (std::find(limits.kv_dtypes.begin(), limits.kv_dtypes.end(), shape.kv_dtype) == limits.kv_dtypes.end()) {
    return Invalid("the device does not keep KV in ", std::string(DTypeName(shape.kv_dtype)));
  }
  if (shape.window < 0) return Invalid("a window of ", shape.window, " positions");
  if (!(shape.soft_cap >= 0) || !std::isfinite(shape.soft_cap)) {
    return Invalid("a soft cap of ", shape.soft_cap, ", must be 0 or a positive number");
  }
  return absl::OkStatus();
}

// What attention computes with: the shape, and what the device limits of it.
absl::Status CheckAttends(const OpLimits& limits, const AttentionShape& shape) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttentionShape(limits, shape));
  if (!(shape.scale > 0.0f)) return Invalid("attention scale is ", shape.scale, ", must be above 0");
  return CheckHeadDim(limits, shape.head_dim);
}

// Positions are numbers that fit, and the range is one that tables may have.
absl::Status CheckSequence(const KvSequence& of, int64_t page_tokens, bool by_pieces) {
  if (of.dense_length != 0 && by_pieces && of.queries > 1) {
    return Invalid("a dense rectangle of ", of.queries, " queries that are attended by pieces");
  }
  if (of.dense_length != 0 && (of.dense_length < of.length || of.dense_length > kMostKvRows)) {
    return Invalid("a dense rectangle of ", of.dense_length, " of ", of.length, " positions");
  }
  if (of.begin < 0 || of.begin > of.end || of.end > of.length) {
    return Invalid("positions ", of.begin, " to ", of.end, " of ", of.length);
  }
  if (of.begin == 0 && of.end == of.length) return absl::OkStatus();
  const bool has_queries = of.begin <= of.length - of.queries && of.end == of.length;
  if (of.dense_length != 0 || (of.queries != 1 && !by_pieces && !has_queries)) {
    return Invalid(of.queries, " queries with positions ", of.begin, " to ", of.end, " only, of ", of.length);
  }
  const int64_t piece_tokens = PieceTokens(of.length);
  for (const int64_t border : {of.begin, of.end}) {
    if (border != of.length && (border % page_tokens != 0 || border % piece_tokens != 0)) {
      return Invalid("a range ends at position ", border, ", no border of pages of ", page_tokens, " and pieces of ",
                     piece_tokens);
    }
  }
  return absl::OkStatus();
}

// The sequence's pages are in the layout, and each is one.
absl::Status CheckPages(const KvLayout& layout, const KvSequence& sequence) {
  const int64_t pages = layout.PagesOf(sequence), listed = static_cast<int64_t>(layout.pages.size());
  if (sequence.first_page < 0 || sequence.first_page > listed - pages) {
    return Invalid("pages ", sequence.first_page, " to ", sequence.first_page + pages, " of ", listed);
  }
  for (int64_t page = sequence.first_page; page < sequence.first_page + pages; ++page) {
    if (layout.pages[page] < 0) return Invalid("page ", page, " is ", layout.pages[page]);
  }
  return absl::OkStatus();
}

// `rows` rows of a tensor are query rows of the table from first_row on.
absl::Status CheckQueryRows(const KvTable& table, int64_t first_row, int64_t rows) {
  if (first_row >= 0 && first_row <= table.rows() - rows) return absl::OkStatus();
  return Invalid("rows ", first_row, " to ", first_row + rows, " of a table of ", table.rows());
}

// All pages of the table lie in `layer`.
absl::Status CheckLayer(const KvTable& table, const AttentionShape& shape, const BufferRef& layer) {
  const int64_t rows = table.base_rows(), row_bytes = shape.kv_row_bytes();
  if (rows <= static_cast<int64_t>(layer.size) / row_bytes && CoversBytes(layer, rows * row_bytes)) {
    return absl::OkStatus();
  }
  return Invalid("a layer's KV of ", layer.size, " bytes, and the table's pages have ", rows, " rows of ", row_bytes);
}

absl::Status CheckByPieces(const KvTable& table) {
  const KvLayout& layout = table.layout();
  if (layout.has_pieces()) return absl::OkStatus();
  if (layout.of_prompts) return Invalid("a layout of prompts' rows has no pieces");
  for (const KvSequence& sequence : layout.sequences) {
    if (sequence.queries != 1)
      return Invalid("a layout of prompts has pieces of one query each, not of ", sequence.queries);
  }
  return absl::OkStatus();
}

absl::Status CheckPartials(const Tensor& partials, const AttentionShape& shape, const KvTable& table) {
  return CheckTensor("partials", partials, {DType::kF32}, table.pieces(), shape.heads * (shape.head_dim + 1));
}

}  // namespace

absl::Status CheckHeadDim(const OpLimits& limits, int64_t head_dim) {
  const int64_t multiple = limits.head_dim_multiple, most = limits.most_head_dim;
  if (head_dim % multiple == 0 && head_dim <= most) return absl::OkStatus();
  return Invalid("head_dim is ", head_dim, ", not a multiple of ", multiple, " up to ", most);
}

absl::Status CheckKvLayout(const KvLayout& layout) {
  if (layout.page_tokens < 1 || layout.page_tokens > kMostKvRows) {
    return Invalid("pages of ", layout.page_tokens, " rows");
  }
  if (layout.by_pieces && layout.of_prompts) return Invalid("rows of prompts by pieces");
  for (const KvSequence& sequence : layout.sequences) {
    if (sequence.queries < 1 || sequence.length < sequence.queries || sequence.length > kMostKvRows) {
      return Invalid(sequence.queries, " queries of a sequence of ", sequence.length, " positions");
    }
    RUNAHEAD_RETURN_IF_ERROR(CheckSequence(sequence, layout.page_tokens, layout.by_pieces));
    RUNAHEAD_RETURN_IF_ERROR(CheckPages(layout, sequence));
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const MutTensor& x, int64_t head_dim, const Rotation& rotation, const KvTable& table,
                       int64_t first_row) {
  RUNAHEAD_RETURN_IF_ERROR(CheckHeads(x, head_dim, {DType::kF32, DType::kBF16, DType::kF16}));
  RUNAHEAD_RETURN_IF_ERROR(CheckQueryRows(table, first_row, x.rows));
  const ConstTensor& angles = rotation.table;
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("the rotation", angles, {DType::kF32}));
  if (angles.cols < 2 || angles.cols % 2 != 0 || angles.cols > head_dim) {
    return Invalid("the rotation has ", angles.cols, " columns, not an even number from 2 to head_dim, ", head_dim);
  }
  for (const int32_t position : table.positions().subspan(first_row, x.rows)) {
    if (position >= angles.rows) return Invalid("position ", position, " of a rotation of ", angles.rows);
  }
  return absl::OkStatus();
}

absl::Status CheckStoreQkv(const OpLimits& limits, const ConstTensor& qkv, const AttentionShape& shape,
                           const MutTensor& q, const KvTable& table, int64_t first_row, const BufferRef& layer) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttentionShape(limits, shape));
  const bool with_q = q.ref.buffer != nullptr;
  const int64_t heads = (with_q ? shape.heads : 0) + 2 * shape.kv_heads;
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("qkv", qkv, {DType::kF32}, qkv.rows, heads * shape.head_dim));
  if (with_q) RUNAHEAD_RETURN_IF_ERROR(CheckTensor("q", q, limits.dtypes, qkv.rows, shape.heads * shape.head_dim));
  RUNAHEAD_RETURN_IF_ERROR(CheckQueryRows(table, first_row, qkv.rows));
  RUNAHEAD_RETURN_IF_ERROR(CheckLayer(table, shape, layer));
  for (int64_t row = first_row; row < first_row + qkv.rows; ++row) {
    if (table.own_rows()[row] < 0) {
      return Invalid("row ", row, " is position ", table.positions()[row], ", which the table does not have");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const OpLimits& limits, const ConstTensor& q, const AttentionShape& shape,
                            const KvTable& table, const ConstBufferRef& layer, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttends(limits, shape));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("q", q, limits.dtypes, table.rows(), shape.heads * shape.head_dim));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("out", out, limits.dtypes, table.rows(), shape.heads * shape.head_dim));
  RUNAHEAD_RETURN_IF_ERROR(CheckLayer(table, shape, layer));
  for (const KvSequence& sequence : table.layout().sequences) {
    if (sequence.begin != 0 || sequence.end != sequence.length) {
      return Invalid("attention to positions ", sequence.begin, " to ", sequence.end, " only, of ", sequence.length);
    }
    if (sequence.dense_length != 0 && shape.window != 0) {
      return Invalid("a dense rectangle of ", sequence.dense_length, " positions with a window of ", shape.window);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAttendPieces(const OpLimits& limits, const ConstTensor& q, const AttentionShape& shape,
                               const KvTable& table, const ConstBufferRef& layer, const MutTensor& partials) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttends(limits, shape));
  RUNAHEAD_RETURN_IF_ERROR(CheckByPieces(table));
  RUNAHEAD_RETURN_IF_ERROR(CheckTensor("q", q, limits.dtypes, table.rows(), shape.heads * shape.head_dim));
  RUNAHEAD_RETURN_IF_ERROR(CheckPartials(partials, shape, table));
  return CheckLayer(table, shape, layer);
}

absl::Status CheckMergePieces(const OpLimits& limits, const ConstTensor& partials, const AttentionShape& shape,
                              const KvTable& table, const MutTensor& out) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAttends(limits, shape));
  RUNAHEAD_RETURN_IF_ERROR(CheckByPieces(table));
  RUNAHEAD_RETURN_IF_ERROR(CheckPartials(partials, shape, table));
  return CheckTensor("out", out, limits.dtypes, table.rows(), shape.heads * shape.head_dim);
}

}  // namespace runahead
