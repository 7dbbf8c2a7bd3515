// How a FakeWorker decodes: reservations, streams, moves, known beginnings.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/testing/fake_worker.h"

namespace runahead::testing {

// The synchronous API tells a cancellation only when asked.
bool FakeWorker::AnswersLeases(grpc::ServerContext* context) {
  MutexLock lock(mu_);
  if (!behaviour_.answers_leases) ++unanswered_;
  changed_.NotifyAll();
  while (!behaviour_.answers_leases && !stopping_ && !context->IsCancelled()) {
    changed_.WaitFor(mu_, absl::Milliseconds(20));
  }
  return behaviour_.answers_leases;
}

grpc::Status FakeWorker::Reserve(grpc::ServerContext* context, const v1::ReserveRequest& request,
                                 v1::ReserveReply& reply) {
  absl::Duration takes;
  {
    MutexLock lock(mu_);
    takes = behaviour_.reserve_takes / 2;
  }
  if (!AnswersLeases(context)) return grpc::Status::CANCELLED;
  absl::SleepFor(takes);
  const grpc::Status status = TakeLease(request, reply);
  absl::SleepFor(takes);
  return status;
}

grpc::Status FakeWorker::TakeLease(const v1::ReserveRequest& request, v1::ReserveReply& reply) {
  MutexLock lock(mu_);
  if (stopping_) return {grpc::StatusCode::UNAVAILABLE, "it is gone"};  // as a process that was killed
  ++reservations_;
  reserve_requests_.push_back(request);
  changed_.NotifyAll();
  if (request.epoch() != capabilities_.epoch()) return {grpc::StatusCode::UNAVAILABLE, "another epoch"};
  if (behaviour_.reserve_error) return *behaviour_.reserve_error;
  if (!behaviour_.reserve) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the store is full"};
  if (request.total_tokens() > capabilities_.kv_capacity_tokens()) {
    return {grpc::StatusCode::OUT_OF_RANGE, "larger than the empty store"};
  }
  int64_t taken = 0;
  for (const auto& [number, tokens] : leases_) taken += tokens;
  const bool grows = behaviour_.grows && request.has_expected_tokens();
  const int32_t counted = grows ? request.expected_tokens() : request.total_tokens();
  if (counted > capabilities_.kv_capacity_tokens() - taken) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the store is full"};
  }
  if (const grpc::Status known = FillKnown(request, reply); !known.ok()) return known;
  reply.mutable_lease()->set_incarnation(capabilities_.incarnation());
  reply.mutable_lease()->set_epoch(capabilities_.epoch());
  reply.mutable_lease()->set_number(next_lease_);
  reserved_[next_lease_] = request;
  leases_[next_lease_++] = counted;
  reply.set_counted_tokens(counted);
  if (behaviour_.takes_x) {
    reply.set_x_tokens(request.max_x_tokens());
    reply.set_kv_from(std::min(behaviour_.kv_from, request.max_x_tokens()));
  }
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Generate(grpc::ServerContext* context, const v1::DecodeRequest& request,
                                  grpc::ServerWriter<v1::DecodeReply>* writer) {
  absl::Duration takes;
  {
    MutexLock lock(mu_);
    takes = behaviour_.generate_takes;
  }
  absl::SleepFor(takes);
  MutexLock lock(mu_);
  decode_requests_.push_back(request);
  changed_.NotifyAll();
  if (!leases_.contains(request.lease().number())) return {grpc::StatusCode::NOT_FOUND, "no such lease"};
  const auto stops = [&](int32_t id) {
    return std::count(request.stop_ids().begin(), request.stop_ids().end(), id) > 0;
  };
  bool counted = false, kept_prompt = false;
  std::vector<int32_t> output;  // that is sent
  grpc::Status status;
  const int64_t prompt = request.has_output_from() ? request.output_from() : request.prompt_ids_size();
  const int64_t known = request.has_output_from() ? request.prompt_ids_size() - request.output_from() : 1;
  const auto ends = [&]() RUNAHEAD_REQUIRES(mu_) {
    return stopping_ || context->IsCancelled() || !leases_.contains(request.lease().number());
  };
  const auto hold = [&](int64_t index, const auto& may_go_on) RUNAHEAD_REQUIRES(mu_) {
    while (index > behaviour_.decode_until && !may_go_on()) {
      if (!std::exchange(counted, true)) ++decodes_;
      changed_.NotifyAll();
      changed_.WaitFor(mu_, absl::Milliseconds(20));  // the synchronous API tells a cancellation only when asked
    }
  };
  if (known >= request.max_tokens()) {  // it waits for the prompt's KV alone
    hold(known, [&]() RUNAHEAD_REQUIRES(mu_) { return ends() || behaviour_.generate_end; });
    if (ends()) status = {grpc::StatusCode::CANCELLED, "stopped"};
  }
  for (int64_t index = known; index < request.max_tokens();) {
    const auto may_move = [&]() RUNAHEAD_REQUIRES(mu_) {
      return to_move_.contains(request.lease().number()) && behaviour_.answers_moves;
    };
    const auto may_go_on = [&]() RUNAHEAD_REQUIRES(mu_) { return ends() || behaviour_.generate_end || may_move(); };
    hold(index, may_go_on);
    if (index > behaviour_.decode_until && behaviour_.generate_end) {
      status = *behaviour_.generate_end;
      break;
    }
    if (ends()) status = {grpc::StatusCode::CANCELLED, "stopped"};
    if (!status.ok()) break;
    if (const auto move = TakeMove(request.lease().number(), prompt, index)) {
      v1::DecodeReply told;
      *told.mutable_move() = *move;
      writer->Write(told);
      if (!move->has_moved_tokens()) continue;
      while (!behaviour_.ends_moved && !stopping_ && !context->IsCancelled()) {
        changed_.WaitFor(mu_, absl::Milliseconds(20));
      }
      break;
    }
    v1::DecodeReply reply;
    bool end = false;
    for (int i = 0; i < behaviour_.tokens_per_reply && index < request.max_tokens() && !end; ++i, ++index) {
      *reply.add_tokens() = Sampled(TokenAt(index));
      output.push_back(TokenAt(index));
      end = stops(TokenAt(index));
    }
    running_[request.lease().number()] = request.max_tokens() - index;
    if (!std::exchange(kept_prompt, true)) KeepPrompt(request, prompt);
    if (!writer->Write(reply)) status = {grpc::StatusCode::CANCELLED, "the reader is gone"};
    if (end || !status.ok()) break;
  }
  if (!std::exchange(counted, true)) ++decodes_;
  if (status.ok() && behaviour_.generate_end) status = *behaviour_.generate_end;
  if (status.ok() && !request.traceparent().empty()) {
    v1::DecodeReply last;
    *last.mutable_spans() = behaviour_.spans;
    writer->Write(last);
  }
  if (known < request.max_tokens() || status.ok()) Keep(request, prompt, output);
  leases_.erase(request.lease().number());
  running_.erase(request.lease().number());
  changed_.NotifyAll();
  return status;
}

grpc::Status FakeWorker::FillKnown(const v1::ReserveRequest& request, v1::ReserveReply& reply) const {
  if (!request.has_least_known_tokens()) return grpc::Status::OK;
  const bool able = request.rest_handed() ? capabilities_.lends_beginnings() : capabilities_.keeps_beginnings();
  if (!able) return {grpc::StatusCode::FAILED_PRECONDITION, "it keeps no beginnings"};
  const auto& ids = request.prompt_ids();
  int64_t known = 0, output = 0;
  for (const Kept& kept : kept_) {
    if (kept.salt != request.salt() || !behaviour_.has_kept) continue;
    const auto most = std::min<int64_t>(static_cast<int64_t>(kept.ids.size()), ids.size() - 1);
    const int64_t common =
        std::mismatch(kept.ids.begin(), kept.ids.begin() + most, ids.begin()).first - kept.ids.begin();
    if (common <= known) continue;
    known = common;
    output = std::max<int64_t>(0, common - kept.prompt);
  }
  if (known < request.least_known_tokens()) return {grpc::StatusCode::NOT_FOUND, "it has less of that beginning"};
  if (request.rest_handed()) {
    output = std::max<int64_t>(0, output - (known - request.least_known_tokens()));
    known = request.least_known_tokens() + behaviour_.more_known;
    if (behaviour_.lost_recompute_s > 0) reply.set_lost_recompute_s(behaviour_.lost_recompute_s);
  } else {
    reply.set_handed_tokens(static_cast<int32_t>(known));
  }
  reply.set_known_tokens(static_cast<int32_t>(known));
  reply.set_known_output_tokens(static_cast<int32_t>(output));
  return grpc::Status::OK;
}

void FakeWorker::KeepPrompt(const v1::DecodeRequest& request, int64_t prompt) {
  const v1::ReserveRequest& reserved = reserved_[request.lease().number()];
  if (!Keeps() || reserved.not_kept()) return;
  const auto begin = request.prompt_ids().begin();
  kept_.push_back({reserved.salt(), {begin, begin + static_cast<int>(prompt)}, prompt});
}

void FakeWorker::Keep(const v1::DecodeRequest& request, int64_t prompt, const std::vector<int32_t>& output) {
  const v1::ReserveRequest& reserved = reserved_[request.lease().number()];
  if (!Keeps() || reserved.not_kept()) return;
  Kept kept{reserved.salt(), {request.prompt_ids().begin(), request.prompt_ids().end()}, prompt};
  if (!request.has_output_from()) kept.ids.push_back(request.first_token());
  kept.ids.insert(kept.ids.end(), output.begin(), output.end());
  kept.ids.pop_back();  // nothing was computed of it
  kept_.push_back(std::move(kept));
}

std::optional<v1::MoveEnd> FakeWorker::TakeMove(uint64_t lease, int64_t prompt, int64_t output) {
  if (!behaviour_.answers_moves || to_move_.erase(lease) == 0) return std::nullopt;
  v1::MoveEnd end;
  if (behaviour_.moves) {
    end.set_moved_tokens(static_cast<int32_t>(prompt + output - 1));
  } else {
    end.set_why_not("it does not want to");
  }
  end.set_bytes(1000);
  end.set_took_s(0.5);
  return end;
}

std::vector<v1::MoveSequence> FakeWorker::AwaitMoves(size_t count) {
  std::vector<v1::MoveSequence> moves;
  Await(absl::StrCat("the router has ordered ", count, " moves"), [&]() RUNAHEAD_REQUIRES(mu_) {
    moves = moves_;
    return moves_.size() >= count;
  });
  return moves;
}

void FakeWorker::Release(const v1::LeaseId& lease) {
  MutexLock lock(mu_);
  leases_.erase(lease.number());
  changed_.NotifyAll();
}

void FakeWorker::AwaitReservations(int count) {
  Await(absl::StrCat(count, " reservations were asked for"),
        [&]() RUNAHEAD_REQUIRES(mu_) { return reservations_ >= count; });
}

void FakeWorker::AwaitUnanswered(int count) {
  Await(absl::StrCat(count, " calls have hung"), [&]() RUNAHEAD_REQUIRES(mu_) { return unanswered_ >= count; });
}

void FakeWorker::AwaitLeases(size_t held) {
  Await(absl::StrCat("exactly ", held, " leases are held"),
        [&]() RUNAHEAD_REQUIRES(mu_) { return leases_.size() == held; });
}

void FakeWorker::AwaitDecodes(int count) {
  Await(absl::StrCat(count, " Generate calls have streamed"),
        [&]() RUNAHEAD_REQUIRES(mu_) { return decodes_ >= count; });
}

size_t FakeWorker::leases() const {
  MutexLock lock(mu_);
  return leases_.size();
}

std::vector<v1::ReserveRequest> FakeWorker::reserve_requests() const {
  MutexLock lock(mu_);
  return reserve_requests_;
}

std::vector<v1::DecodeRequest> FakeWorker::decode_requests() const {
  MutexLock lock(mu_);
  return decode_requests_;
}

}  // namespace runahead::testing
