// What KvprLoop plans and keeps the books of: steps, what comes behind them, and what they took. What it enqueues of a
// step's layers: kvpr_loop.cc.
#include <algorithm>
#include <utility>

#include "kernels/base/kv_table.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/step_tables.h"

namespace runahead {

absl::StatusOr<KvprLoop::LoadedStep> KvprLoop::Plan(absl::Span<const SequenceRows> sequences) {
  LoadedStep planned;
  for (const SequenceRows& of : sequences) {
    planned.keys.push_back({&of.sequence(), of.length(), of.count(), XStored(of), KvFrom(of.sequence())});
    planned.sequences.push_back({of.length(), of.count()});
    planned.request_ids.push_back(of.rows.front().request_id);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.residents, residency_.Prepare(planned.keys, split_->tier_costs()));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ResidentKey& key = planned.keys[i];
    const ResidentPart& part = planned.residents[i];
    planned.shapes.push_back({.length = key.length,
                              .x_stored = key.x_stored,
                              .l_min = part.l_min,
                              .piece_tokens = PieceTokens(key.length),
                              .x_resident = part.x_resident,
                              .resident_from = part.resident_from,
                              .may_attend_on_host = part.first_kv * kKvBlockTokens >= part.resident_from});
    // A window that began behind the first new row would leave rows that the step makes to the lane before it, which
    // may be the host's. So the few positions that it would have pass through staging, with the rest.
    LaneShape& shape = planned.shapes.back();
    if (shape.WindowBegin() > sequences[i].position()) shape.resident_from = key.length;
    const auto blocks = sequences[i].sequence().blocks();
    planned.stored.push_back({{blocks.begin(), blocks.end()}, sequences[i].position(), part.x_resident});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.plan, split_->Plan(planned.shapes));
  planned.rest = split_->rest();
  RUNAHEAD_CHECK(host_lane_ != nullptr || planned.plan.rows.host == 0);
  planned.chunks = CutIntoChunks(planned.shapes, planned.plan.cuts, chunk_pages_);
  planned.times = next_times_ != nullptr ? std::exchange(next_times_, nullptr) : std::make_shared<StepTimes>();
  return planned;
}

// One l for all rows of a sequence: at most up to the first one, for X of the others is not there yet.
int64_t KvprLoop::XStored(const SequenceRows& of) const {
  if (!of.sequence().has_x()) return 0;
  return options_.of_prompt_only ? std::min(of.position(), of.sequence().prompt_tokens()) : of.position();
}

int64_t KvprLoop::KvFrom(const KvStore::Sequence& sequence) const {
  return whole_.contains(&sequence) ? 0 : sequence.kv_from();
}

// What steps wrote in a layer was written in the order of steps.
bool KvprLoop::SettleKv(const KvStore::Sequence& sequence) {
  bool written = true;
  for (const Event& layer : written_) written = layer.Wait().ok() && written;
  return written && KvFrom(sequence) == 0;
}

bool KvprLoop::IsPlanOf(const PlannedStep& planned, absl::Span<const SequenceRows> sequences) const {
  return std::equal(planned.keys.begin(), planned.keys.end(), sequences.begin(), sequences.end(),
                    [](const ResidentKey& key, const SequenceRows& of) {
                      return key.sequence == &of.sequence() && key.length == of.length() && key.rows == of.count();
                    });
}

// The same sequences with as many rows, behind these: what the step has of tokens does not matter to its loads.
absl::Status KvprLoop::PlanAhead(absl::Span<const DecodeRow> rows) {
  std::vector<DecodeRow> ahead(rows.begin(), rows.end());
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<SequenceRows> sequences, BySequence(ahead));
  size_t at = 0;
  for (const SequenceRows& of : sequences) {
    const int64_t count = of.count(), end = of.length() + count;
    if (end > static_cast<int64_t>(of.sequence().blocks().size()) * kKvBlockTokens ||
        end > model_.config().context_length) {
      return absl::OkStatus();  // it ends here, so the next step is another one
    }
    for (int64_t i = 0; i < count; ++i) ahead[at++].position += count;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(next_, Plan(sequences));
  return LoadUpTo(*next_, ring_->slots());
}

void KvprLoop::BeginNext(absl::Span<const DecodeRow> rows) {
  if (std::exchange(next_begun_, true)) return;
  for (size_t i = 0; i < now_.keys.size(); ++i) {
    residency_.Commit(now_.keys[i], now_.residents[i], now_.plan.cuts[i].recomputed_end);
    if (now_.keys[i].kv_from > 0) whole_.insert(now_.keys[i].sequence);
  }
  if (!PlanAhead(rows).ok()) DropNext();  // the next step plans again, and says why
}

// Slots that the device works on are free when it has.
void KvprLoop::DropNext() {
  if (!next_.has_value()) return;
  if (next_->recomputed > 0) {
    for (const StagingRing::Loaded& loaded : next_->under_way) ring_->Release(loaded, device_.Record(stream_));
  }
  next_.reset();
}

absl::Status KvprLoop::MakeRecomputeTables(LoadedStep& step) {
  for (size_t i = step.tables.size(); i < step.chunks.size(); ++i) {
    ChunkTables tables;
    if (step.chunks[i].x_pages > 0) {
      RUNAHEAD_ASSIGN_OR_RETURN(tables.recompute, device_.MakeKvTable(stream_, RecomputeLayout(step.chunks[i])));
    }
    step.tables.push_back(std::move(tables));
  }
  return absl::OkStatus();
}

absl::Status KvprLoop::MakeTables() {
  RUNAHEAD_RETURN_IF_ERROR(MakeRecomputeTables(now_));
  for (size_t i = 0; i < now_.chunks.size(); ++i) {
    ChunkTables& tables = now_.tables[i];
    RUNAHEAD_ASSIGN_OR_RETURN(tables.attend, device_.MakeKvTable(stream_, ChunkLayout(now_.chunks[i], now_.sequences)));
    tables.own = OwnRowsIn(now_.chunks[i], now_.sequences);
  }
  int64_t rows = 0;
  for (const StepSequence& of : now_.sequences) rows += of.rows;
  RUNAHEAD_ASSIGN_OR_RETURN(fresh_, device_.MakeKvTable(stream_, FreshLayout(rows)));
  KvLayout window = WindowLayout(memory_, now_);
  window_own_ = OwnRowsInWindow(window);
  window_ = nullptr;
  if (window_own_.empty()) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(window_, device_.MakeKvTable(stream_, std::move(window)));
  return absl::OkStatus();
}

void KvprLoop::Leave(const KvStore::Sequence& sequence) {
  Report();
  if (next_.has_value() && std::any_of(next_->keys.begin(), next_->keys.end(),
                                       [&](const ResidentKey& key) { return key.sequence == &sequence; })) {
    DropNext();
  }
  // Loads of steps that failed or were dropped, too, and of what was recomputed ahead: nobody has waited for them.
  ring_->Settle();
  device_.Record(stream_).Wait().IgnoreError();
  write_back_->Settle();
  if (host_lane_ != nullptr) host_lane_->Settle();
  residency_.Leave(&sequence);
  whole_.erase(&sequence);
  auto report = reports_.extract(&sequence);
  if (report.empty() || !options_.on_leave) return;
  report.mapped().lease = sequence.lease_number();
  report.mapped().resident_bytes = memory_.used_bytes();
  report.mapped().rest = split_->rest();
  if (split_->rest() != SplitRest::kNone) report.mapped().rest_for = MonotonicNow() - split_->rest_since();
  options_.on_leave(report.mapped());
}

void KvprLoop::OnIdle() {
  if (options_.on_idle) options_.on_idle(*split_);
}

void KvprLoop::Report() {
  if (!unreported_.has_value()) return;
  const KvprStep step = *std::exchange(unreported_, std::nullopt);
  for (SpanRecorder* recorder : std::exchange(recorders_, {})) step.times->CopyTo(*recorder);
  for (size_t i = 0; i < now_.keys.size(); ++i) {
    const LaneCuts& cut = step.plan.cuts[i];
    KvprSequenceReport& report = reports_[now_.keys[i].sequence];
    if (report.steps++ == 0) report.request_id = now_.request_ids[i];
    report.recomputed += cut.recomputed_end;
    report.streamed += cut.streamed_end - cut.recomputed_end;
    report.on_host += cut.host_end - cut.streamed_end;
    report.resident += now_.sequences[i].length - cut.host_end;
    report.overlap += step.times->OverlapRatio();
    report.predicted_s += step.plan.times.layer_s * static_cast<double>(layers_);
    report.measured_s += step.times->DeviceSeconds();
    ++report.bound_by[static_cast<size_t>(BoundOf(step.plan.times))];
    report.rests += step.rest == SplitRest::kNone ? 0 : 1;
  }
  const auto of_a_layer = [&](double seconds) { return seconds / static_cast<double>(layers_); };
  split_->Observe(step.plan, {.link_s = of_a_layer(step.times->LinkSeconds()),
                              .recompute_s = of_a_layer(step.times->Busy(StepLane::kRecompute)),
                              .project_s = of_a_layer(step.times->Busy(StepLane::kProject)),
                              .attend_s = of_a_layer(step.times->AttendSeconds()),
                              .signal_s = of_a_layer(step.times->SignalSeconds()),
                              .host_attend_s = of_a_layer(step.times->Busy(StepLane::kHost)),
                              .layer_s = of_a_layer(step.times->DeviceSeconds())});
  if (options_.on_step) options_.on_step(step);
}

}  // namespace runahead
