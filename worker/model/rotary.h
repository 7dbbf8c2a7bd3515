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

// The plain frequencies, stretched as `rope.scaling.type` says:
//   none      not at all
//   linear    divided by `factor`
//   dynamic   not at all: it differs only beyond the context that the model was trained with, which is the limit here
//   llama3    divided by `factor` where a wave is longer than original/low_freq_factor, not at all where it is shorter
//             than original/high_freq_factor, and in between by degrees. GGUF files have it as tensor rope_freqs.weight
//             instead: what each frequency is divided by, whatever the type
//   yarn      between the two correction dimensions, where a wave turns beta_fast and beta_slow times in the original
//             context, from not at all to divided by `factor`; cosines and sines grow by 0.1 ln(factor) + 1
// INVALID_ARGUMENT names the key or tensor (longrope's, too: rope_factors_long). `dims` is even.
absl::StatusOr<Rotary> ReadRotary(const ConfigKeys& keys, float base, int64_t dims, int64_t context_length);

// The table of Rotation, [context_length, dims] = (cos | sin) of position * frequency, times the magnitude. Angles are
// rounded to f32 before cos and sin, as reference implementations do.
std::vector<float> RotationTable(const Rotary& rotary, int64_t context_length);

}  // namespace runahead
