// The steps of a DecodeEngine: which rows they take, and what comes of them.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/batching/row_plan.h"
#include "server/base/logging.h"
#include "worker/decode/engine.h"
#include "worker/decode/engine_active.h"

namespace runahead {

namespace {

// Products like many rows; who joins during a pass waits for all of it.
constexpr int64_t kLongPass = 16;

}  // namespace

// First the rows of decode's arithmetic: of sequences that decode, and of output that is computed again. Then rows of
// prompts.
void DecodeEngine::Step() {
  const auto [pending, granted] = GrantWithMemory();
  std::vector<Share> of_output, of_prompts;
  for (size_t i = 0; i < granted.size(); ++i) {
    if (granted[i] == 0) continue;
    const bool draws = granted[i] == pending[i].prompt + pending[i].output;
    (pending[i].prompt > 0 ? of_prompts : of_output).push_back({running_[i], granted[i], draws});
  }
  if (of_output.empty() && of_prompts.empty()) return NobodySteps();
  if (!of_output.empty()) Pass(*loop_, of_output);
  if (!of_prompts.empty()) Pass(*prompts_, of_prompts);
}

DecodeEngine::Grants DecodeEngine::Grant(const std::set<SequenceNumber>& without) const {
  Grants grants;
  std::vector<PendingRows>& pending = grants.pending;
  for (const SequenceNumber number : running_) {
    const Active& active = *sequences_.at(number);
    pending.push_back(without.contains(number) || active.AwaitsMask() ? PendingRows{} : active.Pending());
  }
  if (prompts_ == nullptr) {  // a loop of its own may take no more than one row of a sequence
    for (const PendingRows& rows : pending) grants.granted.push_back(rows.output > 0 ? 1 : 0);
    return grants;
  }
  const int64_t most = RowsBeside(pending, options_.step_rows, LongestPass(options_.step_rows, device_));
  grants.granted = GrantRows(pending, {.all = most, .output = options_.step_rows});
  return grants;
}

void DecodeEngine::Pass(StepLoop& loop, absl::Span<const Share> shares) {
  const bool of_prompts = &loop == prompts_.get();
  const absl::Time begin = clock_.Now();
  Tokens tokens;
  awaited_mask_ = false;
  Measured(WorkOf(shares), [&] { NextTokens(loop, shares, tokens); });
  const absl::Time end = clock_.Now();
  const auto batch_size = static_cast<int64_t>(shares.size());
  int64_t rows = 0, again = 0, late = 0;
  for (const Share& share : shares) {
    rows += share.rows;
    again += sequences_.at(share.number)->Again(share.rows);
    late += sequences_.at(share.number)->late ? 1 : 0;
  }
  const int64_t prompt_rows = of_prompts ? rows - late : 0;
  if (options_.on_step) options_.on_step({batch_size, end - begin, prompt_rows, again, awaited_mask_, late});
  for (const Share& share : shares) {
    SpanRecorder* const spans = sequences_.at(share.number)->request.spans.get();
    if (spans == nullptr) continue;
    spans->Add(of_prompts ? "prompt_rows" : "step", -1, begin, end, of_prompts ? share.rows : batch_size);
  }
  for (size_t i = 0; i < shares.size(); ++i) Emit(shares[i], std::move(tokens[i]));
}

int64_t LongestPass(int64_t step_rows, const Device& device) {
  return std::max(step_rows, std::min(device.gemm_rows(), kLongPass * step_rows));
}

double StepWork(int64_t rows, int64_t positions) {
  return 16 + static_cast<double>(rows) + 1e-3 * static_cast<double>(positions);
}

double DecodeEngine::WorkOf(absl::Span<const Share> shares) const {
  int64_t rows = 0, positions = 0;
  for (const Share& share : shares) {
    rows += share.rows;
    positions += share.rows * sequences_.at(share.number)->length();
  }
  return StepWork(rows, positions);
}

// A pass that fails does not say whose fault it is, so its halves are tried, down to sequences that fail alone: the
// others lose time and nothing else, for writing a row's KV again changes nothing. At most 2n - 1 passes for n
// sequences, and about 2 log2(n) where one of them is at fault.
void DecodeEngine::NextTokens(StepLoop& loop, absl::Span<const Share> shares, Tokens& tokens) {
  const absl::Status status = Forward(loop, shares);
  if (!status.ok() && shares.size() > 1) {
    LogDebug("decode", "a step of ", shares.size(), " sequences is tried in halves: ", status.message());
    const size_t half = shares.size() / 2;
    NextTokens(loop, shares.subspan(0, half), tokens);
    NextTokens(loop, shares.subspan(half), tokens);
    return;
  }
  if (!status.ok()) LogWarning("decode", "a sequence ends, for its step fails without others too: ", status.message());
  int64_t drawn = 0;
  for (const Share& share : shares) {
    if (!status.ok()) {
      tokens.emplace_back(status);
    } else if (!share.draws) {
      tokens.emplace_back(std::nullopt);
    } else {
      absl::StatusOr<Sampled> token = sampler_->Token(drawn++);
      if (sequences_.at(share.number)->late) {
        tokens.emplace_back(std::nullopt);
        continue;
      }
      token.ok() ? tokens.emplace_back(*std::move(token)) : tokens.emplace_back(token.status());
    }
  }
}

void DecodeEngine::AwaitMasks(absl::Span<const Share> shares) {
  std::vector<Active*> draw;
  for (const Share& share : shares) {
    if (share.draws) draw.push_back(sequences_.at(share.number).get());
  }
  const auto made = [](const Active* active) { return active->mask.made(); };
  if (std::all_of(draw.begin(), draw.end(), made)) return;
  awaited_mask_ = true;
  const Event computed = device_.Record(*stream_);
  AwaitRinging(computed, [&] {
    if (std::all_of(draw.begin(), draw.end(), made)) return true;
    // There is no haste where nobody can go on, joins or leaves.
    const bool others = draw.size() < running_.size() || std::any_of(draw.begin(), draw.end(), made) || HasLetters();
    return others && computed.fired();
  });
  for (Active* const active : draw) {
    active->late = !active->mask.made();
    if (active->late) ++active->late_passes;
  }
}

// Who is late draws any token, which is not looked at.
absl::Status DecodeEngine::FillMasks(absl::Span<const Share> shares, std::vector<TokenSampler::Row>& draws) {
  size_t draw = 0;
  for (const Share& share : shares) {
    if (!share.draws) continue;
    TokenSampler::Row& row = draws[draw++];
    Active& active = *sequences_.at(share.number);
    if (active.late) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(row.allowed, active.mask.Next());
  }
  return absl::OkStatus();
}

// One pass for `shares`; returns when the device is done with it, also on failure, for the sequences' memory must not
// be given back before.
absl::Status DecodeEngine::Forward(StepLoop& loop, absl::Span<const Share> shares) {
  std::vector<DecodeRow> rows;
  std::vector<TokenSampler::Row> draws;
  for (const Share& share : shares) {
    Active& active = *sequences_.at(share.number);
    const int64_t end = active.computed + share.rows;
    for (int64_t at = active.computed; at < end; ++at) {
      rows.push_back({&*active.kv, active.TokenAt(at), at, active.request.spans.get(), active.request.request_id,
                      share.draws && at + 1 == end});
    }
    active.late = false;
    if (!share.draws) continue;
    if (masks_ != nullptr) masks_->Make(active.mask);
    draws.push_back({.options = active.request.sampling,
                     .position = active.length(),
                     .counts = active.counts,
                     .sequence_row = active.row});
  }
  const bool repeats = loop.repeats();
  if (repeats) device_.BeginStep(*stream_);
  const absl::StatusOr<Tensor> logits = loop.Step(rows);
  absl::Status status = logits.status();
  if (status.ok()) AwaitMasks(shares);
  const absl::Status masked = status.ok() ? FillMasks(shares, draws) : absl::OkStatus();  // while the device computes
  if (status.ok() && masked.ok() && !draws.empty()) status = sampler_->Enqueue(*stream_, *logits, draws);
  if (repeats) device_.EndStep(*stream_);
  const absl::Status done = device_.Record(*stream_).Wait();
  if (status.ok()) status = done;
  if (status.ok()) return masked;  // the request's own
  return absl::InternalError(absl::StrCat("a decode step failed: ", status.ToString()));
}

void DecodeEngine::Emit(const Share& share, absl::StatusOr<std::optional<Sampled>> sampled) {
  if (!sampled.ok()) return End(share.number, sampled.status());
  Active& active = *sequences_.at(share.number);
  // Who is late has its last row computed again, beside the mask: then its token is drawn.
  active.computed += active.late ? share.rows - 1 : share.rows;
  if (!sampled->has_value()) return;
  active.late_passes = 0;
  KeepPrompt(active);  // before anybody hears of the token
  active.Append((*sampled)->id);
  active.sink->OnToken(**std::move(sampled));
  if (active.Finished()) End(share.number, absl::OkStatus());
}

}  // namespace runahead
