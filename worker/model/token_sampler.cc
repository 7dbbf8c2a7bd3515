#include "worker/model/token_sampler.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

absl::StatusOr<BufferRef> Allocate(Device& device, size_t bytes, MemoryKind kind) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device.Allocate(bytes, kind));
  return BufferRef::Whole(std::move(buffer));
}

// Four bytes each, on the device and where the host fills it.
absl::Status AllocateTable(Device& device, int64_t rows, int64_t cols, Tensor& table, Tensor& host) {
  const size_t bytes = rows * cols * sizeof(float);
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef on_device, Allocate(device, bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef on_host, Allocate(device, bytes, MemoryKind::kHost));
  table = MakeTensor(on_device, DType::kF32, rows, cols);
  host = MakeTensor(on_host, DType::kF32, rows, cols);
  return absl::OkStatus();
}

}  // namespace

TokenSampler::TokenSampler(Device& device, int64_t max_rows, int64_t vocab)
    : device_(device), vocab_(vocab), free_(max_rows) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

absl::StatusOr<std::unique_ptr<TokenSampler>> TokenSampler::Create(Device& device, int64_t max_rows, int64_t vocab) {
  std::unique_ptr<TokenSampler> sampler(new TokenSampler(device, max_rows, vocab));
  const size_t drawn_bytes = max_rows * (3 + 2 * std::min(kMostTopK, vocab)) * sizeof(float);
  RUNAHEAD_RETURN_IF_ERROR(AllocateTable(device, max_rows, vocab, sampler->counts_, sampler->host_counts_));
  RUNAHEAD_RETURN_IF_ERROR(
      AllocateTable(device, max_rows, MaskWords(vocab), sampler->allowed_, sampler->host_allowed_));
  RUNAHEAD_ASSIGN_OR_RETURN(sampler->drawn_, Allocate(device, drawn_bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(sampler->host_drawn_, Allocate(device, drawn_bytes, MemoryKind::kHost));
  return sampler;
}

absl::StatusOr<TokenSampler::SequenceRow> TokenSampler::TakeRow(Stream& stream, const SamplingOptions& options,
                                                                const PenaltyCounts& counts) {
  if (!HasPenalties(options) && options.logit_bias.empty()) return SequenceRow();
  if (free_.empty()) return absl::ResourceExhaustedError("all rows for penalty counts and biases are taken");
  const SequenceRow taken(new int32_t(free_.back()), [this](const int32_t* row) {
    free_.push_back(*row);
    delete row;
  });
  free_.pop_back();
  if (!options.logit_bias.empty()) RUNAHEAD_RETURN_IF_ERROR(TakeBias(stream, options, *taken));
  if (!HasPenalties(options)) return taken;
  int32_t* const row = host_counts_.row<int32_t>(*taken);
  std::fill(row, row + vocab_, 0);
  for (const auto& [id, in_output] : counts.entries()) {
    if (id >= 0 && id < vocab_) row[id] = 1 + in_output;
  }
  RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream, host_counts_.Rows(*taken, 1).ref, counts_.Rows(*taken, 1).ref));
  return taken;
}

absl::Status TokenSampler::TakeBias(Stream& stream, const SamplingOptions& options, int32_t at) {
  if (bias_.rows == 0) RUNAHEAD_RETURN_IF_ERROR(AllocateTable(device_, counts_.rows, vocab_, bias_, host_bias_));
  float* const row = host_bias_.row<float>(at);
  std::fill(row, row + vocab_, 0.0f);
  for (const auto& [id, bias] : options.logit_bias) {
    if (id >= 0 && id < vocab_) row[id] = bias;
  }
  return device_.Copy(stream, host_bias_.Rows(at, 1).ref, bias_.Rows(at, 1).ref);
}

absl::Status TokenSampler::Enqueue(Stream& stream, const Tensor& logits, const std::vector<Row>& rows) {
  wanted_.clear();
  top_k_ = 0;
  std::vector<SampleParams> params;
  std::vector<bool> seen(counts_.rows);  // sequence rows
  int32_t masks = 0;
  for (const Row& row : rows) {
    const SamplingOptions& options = row.options;
    wanted_.push_back({row.position, options.logprobs});
    top_k_ = std::max<int64_t>(top_k_, options.logprobs + 1);
    params.push_back({.temperature = options.temperature,
                      .top_k = options.top_k,
                      .top_p = options.top_p,
                      .min_p = options.min_p,
                      .uniform = SamplingUniform(options.seed, row.position)});
    if (!row.allowed.empty()) {
      if (static_cast<int64_t>(row.allowed.size()) != allowed_.cols) {
        return absl::InvalidArgumentError(absl::StrFormat("a mask of %d words for a vocabulary of %d, which is of %d",
                                                          row.allowed.size(), vocab_, allowed_.cols));
      }
      std::copy(row.allowed.begin(), row.allowed.end(), host_allowed_.row<uint32_t>(masks));
      params.back().allowed_row = masks++;
    }
    if (row.sequence_row == nullptr) continue;
    if (!options.logit_bias.empty()) params.back().bias_row = *row.sequence_row;
    if (!HasPenalties(options)) continue;
    RUNAHEAD_RETURN_IF_ERROR(Penalise(row, !seen[*row.sequence_row], params.back()));
    seen[*row.sequence_row] = true;
  }
  if (masks > 0) {
    RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream, host_allowed_.Rows(0, masks).ref, allowed_.Rows(0, masks).ref));
  }
  top_k_ = std::min({top_k_, vocab_, kMostTopK});
  const int64_t n = logits.rows;
  const auto part = [&](int64_t begin, int64_t cols) {
    return MakeTensor(drawn_.Slice(begin * sizeof(float), n * cols * sizeof(float)), DType::kF32, n, cols);
  };
  RUNAHEAD_RETURN_IF_ERROR(
      device_.Sample(stream, logits, std::move(params), {counts_, bias_, allowed_}, part(0, 1), part(n, 1)));
  if (top_k_ > 0) {
    RUNAHEAD_RETURN_IF_ERROR(
        device_.TopK(stream, logits, top_k_, part(3 * n, top_k_), part((3 + top_k_) * n, top_k_), part(2 * n, 1)));
  }
  const size_t bytes = n * (3 + 2 * top_k_) * sizeof(float);
  return device_.Copy(stream, drawn_.Slice(0, bytes), host_drawn_.Slice(0, bytes));
}

// The first row of a sequence keeps fresh tokens; the others know them.
absl::Status TokenSampler::Penalise(const Row& row, bool is_first, SampleParams& own) const {
  own.repetition_penalty = row.options.repetition_penalty;
  own.presence_penalty = row.options.presence_penalty;
  own.frequency_penalty = row.options.frequency_penalty;
  own.counts_row = *row.sequence_row;
  const int32_t last = row.counts.last().id;
  const absl::Span<const int32_t> fresh = row.fresh.empty() ? absl::MakeConstSpan(&last, 1) : row.fresh;
  if (fresh.size() + row.ahead.size() > kMostTokenCounts) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a draw with penalties behind %d tokens that their counts lack, and %d is the most: give fewer "
                        "rows of a sequence to a step",
                        fresh.size() + row.ahead.size(), kMostTokenCounts));
  }
  const auto add = [&](int32_t id, int32_t count) {
    if (id >= 0 && id < vocab_) own.tokens[own.known++] = {id, count};
  };
  for (const int32_t id : fresh) add(id, row.counts.CountOf(id));
  if (is_first) own.kept = own.known;
  for (size_t i = 0; i < row.ahead.size(); ++i) {
    const auto times = std::count(row.ahead.begin(), row.ahead.begin() + i + 1, row.ahead[i]);
    add(row.ahead[i], std::max(1, row.counts.CountOf(row.ahead[i])) + static_cast<int32_t>(times));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sampled> TokenSampler::Token(int64_t row) const {
  const int32_t id = reinterpret_cast<const int32_t*>(host_drawn_.data())[row];
  if (id == kNothingAllowed) {
    return absl::OutOfRangeError(absl::StrFormat(
        "no token may follow at position %d: the request's structure, bad_words and min_tokens leave none",
        wanted_[row].position));
  }
  if (id < 0 || id >= vocab_) {
    return absl::InternalError(absl::StrFormat(
        "the model's logits for position %d are not finite: the sequence cannot go on", wanted_[row].position));
  }
  Sampled sampled{id, {}};
  if (wanted_[row].logprobs >= 0) sampled.logprobs = Logprobs(row, id);
  return sampled;
}

std::vector<TokenLogprobPair> TokenSampler::Logprobs(int64_t row, int32_t chosen) const {
  const int64_t n = static_cast<int64_t>(wanted_.size());
  const float* const values = reinterpret_cast<const float*>(host_drawn_.data()) + n;
  const float* const log_sums = values + n;
  const int32_t* const top_ids = reinterpret_cast<const int32_t*>(log_sums + n) + row * top_k_;
  const float* const top_values = log_sums + n + n * top_k_ + row * top_k_;
  std::vector<TokenLogprobPair> result = {{chosen, values[row] - log_sums[row]}};
  for (int64_t i = 0; i < top_k_ && static_cast<int32_t>(result.size()) <= wanted_[row].logprobs; ++i) {
    if (top_ids[i] != chosen) result.push_back({top_ids[i], top_values[i] - log_sums[row]});
  }
  return result;
}

}  // namespace runahead
