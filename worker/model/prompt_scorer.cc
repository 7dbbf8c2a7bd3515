#include "worker/model/prompt_scorer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

absl::StatusOr<BufferRef> AllocateForScores(Device& device, size_t bytes, MemoryKind kind) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device.Allocate(bytes, kind));
  return BufferRef::Whole(std::move(buffer));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PromptScorer>> PromptScorer::Create(Device& device, int64_t vocab) {
  std::unique_ptr<PromptScorer> scorer(new PromptScorer(device, vocab));
  const int64_t words = MaskWords(vocab);
  const size_t mask_bytes = kRows * words * sizeof(uint32_t);
  const size_t drawn_bytes = kRows * (3 + 2 * std::min<int64_t>(kMostLogprobs + 1, vocab)) * sizeof(float);
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef masks, AllocateForScores(device, mask_bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef host_masks, AllocateForScores(device, mask_bytes, MemoryKind::kHost));
  RUNAHEAD_ASSIGN_OR_RETURN(scorer->drawn_, AllocateForScores(device, drawn_bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(scorer->host_drawn_, AllocateForScores(device, drawn_bytes, MemoryKind::kHost));
  scorer->masks_ = MakeTensor(masks, DType::kF32, kRows, words);
  scorer->host_masks_ = MakeTensor(host_masks, DType::kF32, kRows, words);
  std::memset(scorer->host_masks_.row<uint32_t>(0), 0, mask_bytes);
  return scorer;
}

// A draw from one id brings that id's logit, on every device.
absl::Status PromptScorer::Enqueue(Stream& stream, const Tensor& logits, absl::Span<const int32_t> ids,
                                   int64_t position, int32_t alternatives) {
  const auto n = static_cast<int64_t>(ids.size());
  if (n < 1 || n > kRows || logits.rows != n || alternatives < 0 || alternatives > kMostLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat(logits.rows, " rows of logits, ", n, " tokens and ", alternatives,
                                                   " alternatives: at most ", kRows, " and ", kMostLogprobs,
                                                   " go together"));
  }
  const auto word = [this](size_t row, int32_t id) -> uint32_t& {
    return host_masks_.row<uint32_t>(static_cast<int64_t>(row))[id / 32];
  };
  for (size_t row = 0; row < ids_.size(); ++row) word(row, ids_[row]) = 0;
  ids_.clear();
  std::vector<SampleParams> params(ids.size());
  for (size_t row = 0; row < ids.size(); ++row) {
    if (ids[row] < 0 || ids[row] >= vocab_) {
      return absl::OutOfRangeError(absl::StrCat("token ", ids[row], " is not in a vocabulary of ", vocab_));
    }
    word(row, ids[row]) = 1u << (ids[row] % 32);
    ids_.push_back(ids[row]);
    params[row].allowed_row = static_cast<int32_t>(row);
  }
  position_ = position;
  alternatives_ = alternatives;
  top_k_ = std::min<int64_t>(alternatives + 1, vocab_);
  RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream, host_masks_.Rows(0, n).ref, masks_.Rows(0, n).ref));
  const auto part = [&](int64_t begin, int64_t cols) {
    return MakeTensor(drawn_.Slice(begin * sizeof(float), n * cols * sizeof(float)), DType::kF32, n, cols);
  };
  RUNAHEAD_RETURN_IF_ERROR(
      device_.Sample(stream, logits, std::move(params), {.allowed = masks_}, part(0, 1), part(n, 1)));
  RUNAHEAD_RETURN_IF_ERROR(
      device_.TopK(stream, logits, top_k_, part(3 * n, top_k_), part((3 + top_k_) * n, top_k_), part(2 * n, 1)));
  const size_t bytes = n * (3 + 2 * top_k_) * sizeof(float);
  return device_.Copy(stream, drawn_.Slice(0, bytes), host_drawn_.Slice(0, bytes));
}

absl::StatusOr<std::vector<TokenLogprobPairs>> PromptScorer::Take() const {
  const auto n = static_cast<int64_t>(ids_.size());
  const float* const values = reinterpret_cast<const float*>(host_drawn_.data()) + n;
  const float* const log_sums = values + n;
  const int32_t* const top_ids = reinterpret_cast<const int32_t*>(log_sums + n);
  const float* const top_values = log_sums + n + n * top_k_;
  std::vector<TokenLogprobPairs> scores;
  for (int64_t row = 0; row < n; ++row) {
    const int32_t id = ids_[row];
    if (drawn()[row] != id) {
      return absl::InternalError(absl::StrCat("the model's logits for position ", position_ + row,
                                              " are not finite: the prompt cannot be scored"));
    }
    TokenLogprobPairs& score = scores.emplace_back(TokenLogprobPairs{{id, values[row] - log_sums[row]}});
    for (int64_t i = row * top_k_; i < (row + 1) * top_k_; ++i) {
      if (static_cast<int32_t>(score.size()) > alternatives_) break;
      if (top_ids[i] != id) score.push_back({top_ids[i], top_values[i] - log_sums[row]});
    }
  }
  return scores;
}

}  // namespace runahead
