// What the attention drivers (attention_prefill, attention_pieces) ask of the code of one ISA.
// Plain structs and function pointers: the files that implement them are compiled with flags of their ISA, so they
// must not instantiate inline functions of std or absl that the linker could pick for the whole binary.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace runahead {

// Positions that a kernel of decode attention takes at a time: a piece is so many, or a multiple. Cuts are aligned to
// absolute positions, so that the order of a reduction depends on a sequence's own length only.
inline constexpr int kDecodeSplit = 256;

// Upper bound of PrefillKernels::key_block.
inline constexpr int kMaxKeyBlock = 128;

// KV rows that are worked on next, and are fetched into the cache in order while others are worked on: so the memory is
// read as fast as where nothing is computed. Whole rows, since only lines that follow each other are read fast.
struct KvAhead {
  const std::byte* const* rows = nullptr;  // that of the next line
  const std::byte* const* end = nullptr;
  int line = 0;  // of the row, of 64 bytes
  int row_lines = 0;
  int step = 0;  // lines to fetch for each row that is read, K or V; 0: none is left
};

// One kv head of up to kDecodeSplit positions, seen by the q heads of its group.
struct DecodeSplit {
  const float* q = nullptr;                // [group][padded_dim], times scale * log2(e), zero in the padding
  const std::byte* const* rows = nullptr;  // [count]: KV rows
  int64_t k_offset = 0;                    // bytes from a row to this head's K, head_dim elements
  int64_t v_offset = 0;                    // to its V
  bool cold = false;                       // nobody has asked for the rows yet: they are fetched a little ahead
  KvAhead* ahead = nullptr;                // what is fetched besides; there always
  int count = 0;
  int group = 0;
  int head_dim = 0;
  int padded_dim = 0;       // head_dim rounded up to DecodeKernels::lanes
  float soft_cap = 0;       // in units of log2; 0: none
  float* scores = nullptr;  // scratch [group][kDecodeSplit], 64-byte aligned
  float* max = nullptr;     // out [group]: largest score, in units of log2
  float* sum = nullptr;     // out [group]: sum of 2^(score - max)
  float* acc = nullptr;     // out [group][padded_dim]: sum of 2^(score - max) * V
};

// One key block of one kv head, to be brought into the layout that `attend` reads.
struct PackBlock {
  const std::byte* const* k_rows = nullptr;  // [key_block]; null for keys past the end, packed as zeros
  int64_t v_offset = 0;
  DType dtype = DType::kF32;  // of KV
  int head_dim = 0;
  std::byte* packed = nullptr;  // out, packed_bytes(head_dim), 64-byte aligned
};

// Consecutive queries of one q head over the packed key blocks of its kv head.
struct AttendBlock {
  const std::byte* q = nullptr;  // first query, this head's head_dim elements; rows q_stride bytes apart
  bool q_bf16 = false;
  int64_t q_stride = 0;
  std::byte* out = nullptr;
  bool out_bf16 = false;
  int64_t out_stride = 0;
  int64_t position = 0;   // of the first query; query i sees keys 0..position + i, or the window's last of them
  int queries = 0;        // at most PrefillKernels::max_queries
  int64_t keys = 0;       // that are computed: position + queries, or more where `dense`
  bool dense = false;     // every query computes all `keys`; what it does not see is masked; not with a window
  int64_t first_key = 0;  // none before it is seen; a multiple of key_block
  int64_t window = 0;     // 0: all
  int head_dim = 0;
  float scale = 1.0f;                 // > 0
  float soft_cap = 0;                 // of scaled scores; 0: none. The kernels of bf16 take none
  const std::byte* packed = nullptr;  // the key block of first_key, and the others behind it
  std::byte* scratch = nullptr;       // scratch_bytes(head_dim), 64-byte aligned
};

// Flash attention of a block of queries. Non-finite elements of V are packed as zeros and reported.
struct PrefillKernels {
  int key_block = 0;
  int query_step = 0;   // queries are worked on in strips of so many
  int max_queries = 0;  // a multiple of query_step
  size_t (*packed_bytes)(int head_dim) = nullptr;
  size_t (*scratch_bytes)(int head_dim) = nullptr;
  int (*pack)(const PackBlock& block) = nullptr;  // the first key whose V is not finite, or key_block
  void (*attend)(const AttendBlock& block) = nullptr;
};

struct DecodeKernels {
  int lanes = 0;  // what head_dim is padded to
  void (*split_f32)(const DecodeSplit& split) = nullptr;
  void (*split_bf16)(const DecodeSplit& split) = nullptr;
  void (*split_f16)(const DecodeSplit& split) = nullptr;
};

// f32 arithmetic on KV of any dtype.
const PrefillKernels& Avx2PrefillKernels();
const PrefillKernels& Avx512PrefillKernels();
// Products of bf16, sums in f32; KV in bf16, or in f16, which is rounded.
const PrefillKernels& Avx512Bf16PrefillKernels();
const PrefillKernels& AmxPrefillKernels();

const DecodeKernels& Avx2DecodeKernels();
const DecodeKernels& Avx512DecodeKernels();

}  // namespace runahead
