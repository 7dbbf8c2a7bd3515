// Rotary positions as a model's keys have them: frequencies, and how files stretch them over longer contexts.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/config_keys.h"

namespace runahead {

// The tensor that ReadRotary reads, where it is there.
inline constexpr char kRopeFreqs[] = "rope_freqs.weight";

struct Rotary {
  std::vector<float> frequencies;  // [dims/2], in radians a position
  float magnitude = 1;             // of cosines and sines
  bool operator==(const Rotary&) const = default;
};

// [dims/2]: frequency_d = base^(-2d/dims).
std::vector<float> PlainFrequencies(float base, int64_t dims);

// What `rope.scaling.attn_factor` multiplies cosines and sines with, whatever the type; 1 where it is not there.
absl::StatusOr<float> AttentionFactor(const ConfigKeys& keys);

// The plain frequencies, stretched as `rope.scaling.type` says:
//   none      not at all
//   linear    divided by `factor`, or by `rope.scale_linear` of old files; either without a type means this one
//   dynamic   not at all: it differs only beyond the context that the model was trained with, which is the limit here
//   llama3    divided by `factor` where a wave is longer than original/low_freq_factor, not at all where it is shorter
//             than original/high_freq_factor, and in between by degrees. GGUF files have it as tensor rope_freqs.weight
//             instead: what each frequency is divided by, whatever the type
//   yarn      between the two correction dimensions, where a wave turns beta_fast and beta_slow times in the original
//             context, from not at all to divided by `factor`; cosines and sines grow by 0.1 ln(factor) + 1
// INVALID_ARGUMENT names the key or tensor (longrope's, too: rope_factors_long). `dims` is even.
absl::StatusOr<Rotary> ReadRotary(const ConfigKeys& keys, float base, int64_t dims, int64_t context_length);

// A table has whole tiles of positions, for products of whole tiles are rotated as a whole.
inline constexpr int64_t kRotationTile = 64;

// The table of Rotation, [context_length, dims] = (cos | sin) of position * frequency, times the magnitude. Angles are
// rounded to f32 before cos and sin, as reference implementations do.
std::vector<float> RotationTable(const Rotary& rotary, int64_t context_length);

}  // namespace runahead
