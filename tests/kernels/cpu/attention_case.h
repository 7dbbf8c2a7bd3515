// Random attention problems, their answer in double precision, and the comparison.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/attention.h"
#include "tests/kernels/paged_kv.h"

namespace runahead {

class HeapBuffer : public Buffer {
 public:
  explicit HeapBuffer(size_t bytes) : Buffer(nullptr, bytes), memory_(bytes) { data_ = memory_.data(); }

 private:
  std::vector<std::byte> memory_;
};

inline std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeSize(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else if (dtype == DType::kBF16) {
    std::transform(values.begin(), values.end(), reinterpret_cast<BFloat16*>(bytes.data()), ToBFloat16);
  } else {
    std::transform(values.begin(), values.end(), reinterpret_cast<Float16*>(bytes.data()), ToFloat16);
  }
  return bytes;
}

inline float Decode(const std::byte* bytes, size_t i, DType dtype) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(bytes)[i];
  return dtype == DType::kBF16 ? ToFloat(reinterpret_cast<const BFloat16*>(bytes)[i])
                               : ToFloat(reinterpret_cast<const Float16*>(bytes)[i]);
}

// What is left of a value that is kept in `dtype`.
inline float Kept(float value, DType dtype) {
  if (dtype == DType::kF32) return value;
  return dtype == DType::kBF16 ? ToFloat(ToBFloat16(value)) : ToFloat(ToFloat16(value));
}

inline BufferRef BytesOf(const std::vector<std::byte>& bytes) {
  auto buffer = std::make_shared<HeapBuffer>(bytes.size());
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  return BufferRef::Whole(std::move(buffer));
}

// Memory that ends the process when somebody reads its first `hidden` bytes, a multiple of the system's page.
class GuardedBuffer : public Buffer {
 public:
  GuardedBuffer(size_t bytes, size_t hidden) : Buffer(nullptr, bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RUNAHEAD_CHECK(memory != MAP_FAILED && mprotect(memory, hidden, PROT_NONE) == 0);
    data_ = static_cast<std::byte*>(memory);
  }
  ~GuardedBuffer() override { munmap(data_, size_); }
};

struct SequenceSpec {
  int64_t queries = 1;
  int64_t length = 1;
  int64_t dense_length = 0;
  int64_t unreadable = 0;                                          // positions at the front that nobody may read
  int64_t rows() const { return std::max(length, dense_length); }  // of KV
};

struct AttentionCase {
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr int64_t kSpareColumns = 24;  // of q and out rows

  AttentionShape shape;
  DType q_dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  std::vector<SequenceSpec> specs;
  int64_t page_tokens = 16;            // 0: a page for each sequence. Of one row where positions are unreadable
  bool by_pieces = false;              // of the layout
  std::vector<float> q;                // [rows][stride], as the dtype holds it
  std::vector<std::vector<float>> kv;  // per sequence [rows][2 * kv_heads * head_dim]

  AttentionCase(int64_t heads, int64_t kv_heads, int64_t head_dim, DType q_dtype, DType kv_dtype, DType out_dtype,
                std::vector<SequenceSpec> sequences, int64_t page_tokens = 16, uint32_t seed = 1)
      : q_dtype(q_dtype), out_dtype(out_dtype), specs(std::move(sequences)), page_tokens(page_tokens) {
    shape = {heads, kv_heads, head_dim, kv_dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
    for (size_t s = 0; s < specs.size(); ++s) {
      // Each sequence has a generator of its own, so that it is the same sequence in any batch with its seed.
      uint32_t state = seed + 1000 * static_cast<uint32_t>(specs[s].length);
      const auto draw = [&](DType dtype) {  // uniform, of variance 1
        state = state * 1664525u + 1013904223u;
        const float value = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 3.4641f;
        return Kept(value, dtype);
      };
      for (int64_t i = 0; i < specs[s].queries; ++i) {
        for (int64_t c = 0; c < heads * head_dim; ++c) q.push_back(draw(q_dtype));
        q.insert(q.end(), kSpareColumns, kNan);
      }
      std::vector<float>& rows = kv.emplace_back();
      for (int64_t i = 0; i < specs[s].rows() * row_elements(); ++i) rows.push_back(draw(kv_dtype));
    }
  }

  // Query `query` of a sequence by itself: the positions that it sees, and it alone.
  AttentionCase Alone(size_t sequence, int64_t query) const {
    AttentionCase alone = *this;
    const int64_t length = specs[sequence].length - specs[sequence].queries + query + 1;
    int64_t row = query;
    for (size_t s = 0; s < sequence; ++s) row += specs[s].queries;
    alone.specs = {{1, length}};
    alone.by_pieces = false;
    alone.q.assign(q.begin() + row * stride(), q.begin() + (row + 1) * stride());
    alone.kv = {{kv[sequence].begin(), kv[sequence].begin() + length * row_elements()}};
    return alone;
  }

  int64_t row_elements() const { return 2 * shape.kv_heads * shape.head_dim; }
  int64_t columns() const { return shape.heads * shape.head_dim; }
  int64_t stride() const { return columns() + kSpareColumns; }
  float* K(size_t sequence, int64_t position, int64_t kv_head) {
    return kv[sequence].data() + position * row_elements() + kv_head * shape.head_dim;
  }
  float* V(size_t sequence, int64_t position, int64_t kv_head) {
    return K(sequence, position, kv_head) + shape.kv_heads * shape.head_dim;
  }

  // Calls run(args) and returns out [rows][stride] as floats; the spare columns must come back untouched.
  template <typename Run>
  std::vector<float> Compute(const Run& run) const {
    const auto [layout, layer] = Layer();
    const std::shared_ptr<const CpuKvTable> table = *CpuKvTable::Make(layout);
    const int64_t rows = table->rows();
    const std::vector<std::byte> poison = Encode(std::vector<float>(rows * stride(), kNan), out_dtype);
    const Tensor out{BytesOf(poison), out_dtype, rows, columns(), stride()};
    run(CpuAttentionArgs{{BytesOf(Encode(q, q_dtype)), q_dtype, rows, columns(), stride()}, shape, *table, layer, out});
    std::vector<float> values(rows * stride());
    const size_t size = DTypeSize(out_dtype);
    for (size_t i = 0; i < values.size(); ++i) values[i] = Decode(out.ref.data(), i, out_dtype);
    for (int64_t r = 0; r < rows; ++r) {
      const size_t at = (r * stride() + columns()) * size;
      EXPECT_EQ(0, std::memcmp(out.ref.data() + at, poison.data() + at, kSpareColumns * size)) << "row " << r;
    }
    return values;
  }

  // As prompts.
  std::vector<float> Run(ThreadPool& pool, CpuIsa isa) const {
    return Compute([&](const CpuAttentionArgs& args) { RunCpuAttention(pool, isa, args); });
  }
  // As a decode step: every sequence has one query, or the layout is by pieces.
  std::vector<float> Step(ThreadPool& pool, CpuIsa isa) const {
    return Compute([&](const CpuAttentionArgs& args) {
      const Tensor partials = Partials(args.table);
      AttendCpuPieces(pool, isa, {args.q, args.shape, args.table, args.layer, partials});
      MergeCpuPieces(pool, partials, args.shape, args.table, args.out);
    });
  }
  // Room for pieces, full of NaN.
  Tensor Partials(const CpuKvTable& table) const {
    const int64_t cols = shape.heads * (shape.head_dim + 1);
    const std::vector<float> poison(table.pieces() * cols, kNan);
    return MakeTensor(BytesOf(Encode(poison, DType::kF32)), DType::kF32, table.pieces(), cols);
  }

  // The KV in pages, of sequences that have it all.
  std::pair<KvLayout, BufferRef> Layer() const {
    std::vector<KvSequence> sequences;
    bool guarded = false;
    for (const SequenceSpec& spec : specs) {
      sequences.push_back({spec.queries, spec.length, 0, 0, spec.length, spec.dense_length});
      guarded = guarded || spec.unreadable > 0;
    }
    PagedKv paged = PageKv(std::move(sequences), kv, row_elements(), guarded ? 1 : page_tokens);
    paged.layout.by_pieces = by_pieces;
    const std::vector<std::byte> bytes = Encode(paged.rows, shape.kv_dtype);
    if (!guarded) return {std::move(paged.layout), BytesOf(bytes)};
    // Page 0 is unreadable, and so is all that shares pages of the system with it.
    const auto row_bytes = static_cast<size_t>(shape.kv_row_bytes()), page = static_cast<size_t>(getpagesize());
    const size_t hidden = (row_bytes + page - 1) / page * page, first = (hidden + row_bytes - 1) / row_bytes;
    auto buffer = std::make_shared<GuardedBuffer>(first * row_bytes + bytes.size(), hidden);
    std::memcpy(buffer->data() + first * row_bytes, bytes.data(), bytes.size());
    for (int32_t& at : paged.layout.pages) at += static_cast<int32_t>(first);
    for (size_t s = 0; s < specs.size(); ++s) {
      std::fill_n(paged.layout.pages.begin() + paged.layout.sequences[s].first_page, specs[s].unreadable, 0);
    }
    return {std::move(paged.layout), BufferRef::Whole(std::move(buffer))};
  }

  // Out of one query and head in double precision.
  std::vector<double> Reference(size_t sequence, int64_t query, int64_t head) const {
    const SequenceSpec& spec = specs[sequence];
    const int64_t dim = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t row = query;
    for (size_t s = 0; s < sequence; ++s) row += specs[s].queries;
    const float* x = q.data() + row * stride() + head * dim;
    const int64_t visible = spec.length - spec.queries + query + 1;
    AttentionCase& self = const_cast<AttentionCase&>(*this);
    const int64_t begin = shape.window == 0 ? 0 : std::max<int64_t>(0, visible - shape.window);
    std::vector<double> scores(visible);
    for (int64_t k = begin; k < visible; ++k) {
      const float* key = self.K(sequence, k, kv_head);
      for (int64_t d = 0; d < dim; ++d) scores[k] += static_cast<double>(x[d]) * key[d];
      scores[k] *= shape.scale;
      if (shape.soft_cap > 0) scores[k] = shape.soft_cap * std::tanh(scores[k] / shape.soft_cap);
    }
    const double top = *std::max_element(scores.begin() + begin, scores.end());
    std::vector<double> out(dim);
    double sum = 0;
    for (int64_t k = begin; k < visible; ++k) {
      const double p = std::exp(scores[k] - top);
      const float* value = self.V(sequence, k, kv_head);
      sum += p;
      for (int64_t d = 0; d < dim; ++d) out[d] += p * value[d];
    }
    for (double& value : out) value /= sum;
    return out;
  }

  // Every query and head of `out`, up to absolute + relative * |reference|; queries from `first` to `last` only.
  void ExpectMatches(const std::vector<float>& out, double absolute, double relative, int64_t first = 0,
                     int64_t last = std::numeric_limits<int64_t>::max()) const {
    int64_t row = 0;
    for (size_t s = 0; s < specs.size(); row += specs[s++].queries) {
      for (int64_t i = first; i < std::min(last, specs[s].queries); ++i) {
        for (int64_t head = 0; head < shape.heads; ++head) {
          const std::vector<double> want = Reference(s, i, head);
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            const double got = out[(row + i) * stride() + head * shape.head_dim + d];
            const double bound = absolute + relative * std::fabs(want[d]);
            ASSERT_LE(std::fabs(got - want[d]), bound) << "sequence " << s << " query " << i << " head " << head
                                                       << " d " << d << ": got " << got << ", want " << want[d];
          }
        }
      }
    }
  }
};

// What this machine can run.
inline std::vector<CpuIsa> IsasOfThisMachine() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa <= DetectCpuIsa()) isas.push_back(isa);
  }
  return isas;
}

}  // namespace runahead
