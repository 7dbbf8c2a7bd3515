// Changes text before it is cut into words, as the model's training did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tokenizer/keep_going.h"
#include "server/tokenizer/regex.h"
#include "server/tokenizer/unicode.h"

namespace runahead {

struct NormalizerStep {
  enum class Kind {
    kPrepend,  // `to` before a text that is not empty
    kReplace,  // every `from` by `to`
    kPattern,  // every match of the pattern `from` by `to`
    kStrip,    // white space at the begin (`left`) and the end (`right`) goes
    kUnicode,  // a normal form
  };
  Kind kind;
  std::string from = {};
  std::string to = {};  // at most kMaxNormalizerText bytes
  bool left = false;
  bool right = false;
  NormalForm form = NormalForm::kNfc;
};

inline constexpr size_t kMaxNormalizerText = 64;

// Immutable and thread-safe.
class Normalizer {
 public:
  // INVALID_ARGUMENT says what is wrong with a step.
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerStep>& steps);

  // Whether text stays as it is.
  bool empty() const { return stages_.empty(); }

  // `text` after all steps; any bytes, of which those that are no UTF-8 stay. INVALID_ARGUMENT above 1 GiB, else fails
  // only where `steps` do.
  absl::StatusOr<std::string> Apply(std::string_view text, Steps& steps) const;

  // At most this many bytes of a text become one byte; 0: no bound is known. White space may become nothing at all
  // where `drops_white_space`.
  int64_t most_bytes_for_one() const { return most_bytes_for_one_; }
  bool drops_white_space() const { return drops_white_space_; }

 private:
  struct Stage {
    NormalizerStep step;
    std::optional<Regex> pattern;
  };
  static absl::StatusOr<std::string> Run(const Stage& stage, std::string_view text, Steps& steps);
  void Bound(const NormalizerStep& step);

  std::vector<Stage> stages_;
  int64_t most_bytes_for_one_ = 1;
  bool drops_white_space_ = false;
};

}  // namespace runahead
