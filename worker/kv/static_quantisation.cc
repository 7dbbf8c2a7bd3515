#include "worker/kv/static_quantisation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int32_t kTopCode = 255;

// The K, or the V, of rows, one behind the other.
std::vector<float> HalfOf(absl::Span<const float> rows, int64_t kv_dim, bool values) {
  std::vector<float> half;
  half.reserve(rows.size() / 2);
  for (size_t at = values ? kv_dim : 0; at < rows.size(); at += 2 * kv_dim) {
    half.insert(half.end(), rows.begin() + at, rows.begin() + at + kv_dim);
  }
  return half;
}

}  // namespace

// The range is stretched to 0, which is what padding holds.
absl::StatusOr<TensorQuantisation> FitTensor(absl::Span<const float> values) {
  double low = 0, high = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor with ", value, " has no range to quantise by"));
    }
    low = std::min<double>(low, value);
    high = std::max<double>(high, value);
  }
  if (low == high) return TensorQuantisation{};
  TensorQuantisation by;
  // Not so small that dividing by it overflows.
  by.scale = std::max(static_cast<float>((high - low) / kTopCode), std::numeric_limits<float>::min());
  by.zero = std::clamp(static_cast<int32_t>(std::lround(-low / by.scale)), 0, kTopCode);
  return by;
}

int64_t QuantiseTensor(const TensorQuantisation& by, absl::Span<const float> values, absl::Span<uint8_t> codes) {
  RUNAHEAD_CHECK(codes.size() == values.size());
  // Half a step beyond the last code is still rounded to it. A value at the border of the range that was fitted may
  // come to lie there, and by rounding of the scale a little further.
  constexpr double kBorder = 0.5 + 1e-4;
  int64_t saturated = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double code = static_cast<double>(values[i]) / by.scale + by.zero;
    const bool fits = code >= -kBorder && code <= kTopCode + kBorder;
    saturated += fits ? 0 : 1;
    const double whole = std::isnan(code) ? by.zero : std::clamp<double>(std::round(code), 0, kTopCode);
    codes[i] = static_cast<uint8_t>(whole);
  }
  return saturated;
}

void DequantiseTensor(const TensorQuantisation& by, absl::Span<const uint8_t> codes, absl::Span<float> values) {
  RUNAHEAD_CHECK(codes.size() == values.size());
  for (size_t i = 0; i < codes.size(); ++i) values[i] = static_cast<float>(codes[i] - by.zero) * by.scale;
}

StaticQuantisation::StaticQuantisation(int64_t layers, int64_t kv_dim) : kv_dim_(kv_dim), layers_(layers) {}

absl::Status StaticQuantisation::Fix(int64_t layer, absl::Span<const float> rows) {
  if (layers_[layer].has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, " is fixed already, and what has been quantised stays as it is"));
  }
  if (rows.empty() || rows.size() % (2 * kv_dim_) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(rows.size(), " values are no rows of K and V of ", kv_dim_));
  }
  Layer fixed;
  RUNAHEAD_ASSIGN_OR_RETURN(fixed.keys, FitTensor(HalfOf(rows, kv_dim_, /*values=*/false)));
  RUNAHEAD_ASSIGN_OR_RETURN(fixed.values, FitTensor(HalfOf(rows, kv_dim_, /*values=*/true)));
  layers_[layer] = fixed;
  return absl::OkStatus();
}

void StaticQuantisation::Quantise(int64_t layer, absl::Span<const float> rows, absl::Span<uint8_t> codes) {
  RUNAHEAD_CHECK(rows.size() == codes.size() && rows.size() % (2 * kv_dim_) == 0);
  for (size_t at = 0; at < rows.size(); at += 2 * kv_dim_) {
    saturated_ += QuantiseTensor(keys(layer), rows.subspan(at, kv_dim_), codes.subspan(at, kv_dim_));
    saturated_ +=
        QuantiseTensor(values(layer), rows.subspan(at + kv_dim_, kv_dim_), codes.subspan(at + kv_dim_, kv_dim_));
  }
}

void StaticQuantisation::Dequantise(int64_t layer, absl::Span<const uint8_t> codes, absl::Span<float> rows) const {
  RUNAHEAD_CHECK(rows.size() == codes.size() && rows.size() % (2 * kv_dim_) == 0);
  for (size_t at = 0; at < rows.size(); at += 2 * kv_dim_) {
    DequantiseTensor(keys(layer), codes.subspan(at, kv_dim_), rows.subspan(at, kv_dim_));
    DequantiseTensor(values(layer), codes.subspan(at + kv_dim_, kv_dim_), rows.subspan(at + kv_dim_, kv_dim_));
  }
}

}  // namespace runahead
