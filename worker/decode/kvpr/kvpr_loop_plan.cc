// What KvprLoop plans and keeps the books of: steps, what comes behind them, and what they took. What it enqueues of a
// step's layers: kvpr_loop.cc.
#include <algorithm>
#include <utility>

#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/step_tables.h"

namespace runahead {

absl::StatusOr<KvprLoop::LoadedStep> KvprLoop::Plan(absl::Span<const DecodeRow> rows) {
  LoadedStep planned;
  for (const DecodeRow& row : rows) {
    const int64_t length = row.position + 1;
    planned.keys.push_back({row.sequence, length, row.sequence->has_x() ? row.position : 0, KvFrom(row)});
    planned.lengths.push_back(length);
    planned.request_ids.push_back(row.request_id);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.residents, residency_.Prepare(planned.keys, split_->tier_costs()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const ResidentKey& key = planned.keys[i];
    const ResidentPart& part = planned.residents[i];
    planned.shapes.push_back({.length = key.length,
                              .x_stored = key.x_stored,
                              .l_min = part.l_min,
                              .piece_tokens = PieceTokens(key.length),
                              .x_resident = part.x_resident,
                              .resident_from = part.resident_from,
                              .may_attend_on_host = part.first_kv * kKvBlockTokens >= part.resident_from});
    const auto blocks = rows[i].sequence->blocks();
    planned.stored.push_back({{blocks.begin(), blocks.end()}, rows[i].position, part.x_resident});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(planned.plan, split_->Plan(planned.shapes));
  RUNAHEAD_CHECK(host_lane_ != nullptr || planned.plan.rows.host == 0);
  planned.chunks = CutIntoChunks(planned.shapes, planned.plan.cuts, chunk_pages_);
  planned.times = next_times_ != nullptr ? std::exchange(next_times_, nullptr) : std::make_shared<StepTimes>();
  return planned;
}

int64_t KvprLoop::KvFrom(const DecodeRow& row) const {
  return whole_.contains(row.sequence) ? 0 : row.sequence->kv_from();
}

bool KvprLoop::IsPlanOf(const PlannedStep& planned, absl::Span<const DecodeRow> rows) const {
  return std::equal(planned.keys.begin(), planned.keys.end(), rows.begin(), rows.end(),
                    [](const ResidentKey& key, const DecodeRow& row) {
                      return key.sequence == row.sequence && key.length == row.position + 1;
                    });
}

// The same sequences, a position further: what the step has of tokens does not matter to its loads.
absl::Status KvprLoop::PlanAhead(absl::Span<const DecodeRow> rows) {
  std::vector<DecodeRow> ahead(rows.begin(), rows.end());
  for (DecodeRow& row : ahead) {
    ++row.position;
    if (row.position >= static_cast<int64_t>(row.sequence->blocks().size()) * kKvBlockTokens ||
        row.position >= model_.config().context_length) {
      return absl::OkStatus();  // it ends here, so the next step is another one
    }
  }
  RUNAHEAD_ASSIGN_OR_RETURN(next_, Plan(ahead));
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
    if (step.chunks[i].x_rows > 0) {
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
    RUNAHEAD_ASSIGN_OR_RETURN(tables.attend, device_.MakeKvTable(stream_, ChunkLayout(now_.chunks[i], now_.lengths)));
    tables.own = OwnRowsIn(now_.chunks[i], now_.lengths);
  }
  const auto rows = static_cast<int64_t>(now_.lengths.size());
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
  // Loads of steps that failed or were dropped, too: nobody has waited for them.
  ring_->Settle();
  write_back_->Settle();
  if (host_lane_ != nullptr) host_lane_->Settle();
  residency_.Leave(&sequence);
  whole_.erase(&sequence);
  auto report = reports_.extract(&sequence);
  if (report.empty() || !options_.on_leave) return;
  report.mapped().lease = sequence.lease_number();
  report.mapped().resident_bytes = memory_.used_bytes();
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
    report.resident += now_.lengths[i] - cut.host_end;
    report.overlap += step.times->OverlapRatio();
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
