// Parameters of ops that kernels read as they are; without absl, so that files of kernels may include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runahead {

// Of a NaN each is NaN.
enum class Activation {
  kRelu,      // max(x, 0)
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x/2 * (1 + erf(x / sqrt(2)))
  kGeluTanh,  // x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))): the approximation that some families are trained
              // with
};

// How rows of KV, or of X, are quantised: group by group. A row of n elements is its n / group groups one after the
// other. KV is quantised asymmetrically: a group is its scale and its minimum (f16), then its codes of `bits` bits
// (with 4 bits element 2i in the low half of byte i). value = minimum + code * scale. A group whose values are all the
// same has scale 0. Values beyond the range of f16 saturate. X is quantised symmetrically, as products in 8 bits do
// with what they read: a group is its scale (f32), which is the largest magnitude over the largest code, then its
// codes, in two's complement. value = code * scale; a group whose magnitudes are all below 2^-100 has scale 0. In both
// a group with a value that is not finite reads back as NaN, all of it.
struct KvQuant {
  int bits = 4;    // 4 or 8; symmetric: 8 or 16
  int group = 64;  // 32, 64 or 128; symmetric: 32
  bool symmetric = false;
};

constexpr size_t KvQuantGroupBytes(const KvQuant& quant) {
  return 4 + static_cast<size_t>(quant.group) * quant.bits / 8;
}
// n: a multiple of the group.
constexpr size_t KvQuantRowBytes(int64_t n, const KvQuant& quant) {
  return static_cast<size_t>(n / quant.group) * KvQuantGroupBytes(quant);
}

// A row of Device::ExchangeRows: from which of one tensor to which of the other.
struct RowMove {
  int32_t from = 0, to = 0;
};

// How often a sequence has a token: 0: not at all, else 1 + how often its output has it.
struct TokenCount {
  int32_t id = 0;
  int32_t count = 0;
};
// Of SampleParams: as many rows of a sequence as steps are made for.
inline constexpr int32_t kMostTokenCounts = 16;

// In place of a token from Device::Sample.
inline constexpr int32_t kNotFinite = -1;       // a logit of the row is not finite
inline constexpr int32_t kNothingAllowed = -2;  // the row's mask has no id

// Of a mask over ids: bit id % 32 of word id / 32 says whether an id may be drawn.
constexpr int64_t MaskWords(int64_t vocab) {
  return (vocab + 31) / 32;
}

// How Device::Sample draws a token for one row.
struct SampleParams {
  float temperature = 0;  // 0: the likeliest, whatever filters are set
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // (0, 1]; 1: off
  float min_p = 0;        // [0, 1]; 0: off
  double uniform = 0;     // the draw, in [0, 1)
  // A bias, which is added to the logits, comes before all else.
  int32_t bias_row = -1;     // of Sample's bias; -1: none
  int32_t allowed_row = -1;  // of Sample's masks; -1: every id may be drawn
  // Penalties come before temperature and filters, and fall on the ids that the sequence has: repetition divides a
  // positive logit and multiplies a negative one; for an id of the output, presence + frequency * (how often) is taken
  // off.
  float repetition_penalty = 1;  // above 0
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t counts_row = -1;  // of Sample's counts; -1: no penalties
  // tokens[0, kept) are written to that row of counts, before the draw. tokens[kept, known) are for this draw alone:
  // the counts are as they say, in their order, of ids that rows before this one have in the same step.
  int32_t kept = 0, known = 0;
  TokenCount tokens[kMostTokenCounts] = {};
};

}  // namespace runahead
