// What a fake worker keeps of sequences, as its router sees and empties it. A token takes one byte.
#include <algorithm>

#include "scheduler/placement/beginning_hash.h"
#include "tests/testing/fake_worker.h"

namespace runahead::testing {

grpc::Status FakeWorker::EnterKept(grpc::ServerContext* context, uint32_t epoch) {
  while (!behaviour_.answers_kept && !stopping_ && !context->IsCancelled()) {
    changed_.WaitFor(mu_, absl::Milliseconds(20));
  }
  if (!behaviour_.answers_kept) return grpc::Status::CANCELLED;
  if (epoch != capabilities_.epoch()) return {grpc::StatusCode::UNAVAILABLE, "another epoch"};
  return grpc::Status::OK;
}

int64_t FakeWorker::KeptTokens() const {
  int64_t tokens = 0;
  for (const Kept& kept : kept_) tokens += static_cast<int64_t>(kept.ids.size());
  return tokens;
}

grpc::Status FakeWorker::LookKept(grpc::ServerContext* context, const v1::LookKeptRequest& request,
                                  v1::KeptMemory& reply) {
  MutexLock lock(mu_);
  if (const grpc::Status entered = EnterKept(context, request.epoch()); !entered.ok()) return entered;
  reply.set_kept_bytes(KeptTokens());
  reply.set_capacity_bytes(capabilities_.kv_capacity_tokens());
  return grpc::Status::OK;
}

grpc::Status FakeWorker::ForgetKept(grpc::ServerContext* context, const v1::ForgetKeptRequest& request,
                                    v1::ForgetKeptReply& reply) {
  MutexLock lock(mu_);
  if (const grpc::Status entered = EnterKept(context, request.epoch()); !entered.ok()) return entered;
  forget_requests_.push_back(request);
  const int64_t before = KeptTokens();
  std::erase_if(kept_, [&](const Kept& kept) { return !request.has_salt() || kept.salt == request.salt(); });
  reply.set_freed_bytes(before - KeptTokens());
  return grpc::Status::OK;
}

void FakeWorker::Evict() {
  constexpr size_t kChunk = kHashedTokens;
  MutexLock lock(mu_);
  for (const Kept& kept : kept_) {
    const absl::Span<const int32_t> ids = kept.ids;
    uint64_t hash = BeginningHash(kept.salt);
    for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
      hash = BeginningHash(hash, ids.subspan(begin, kChunk));
      evicted_.push_back(hash);
    }
  }
  kept_.clear();
}

std::vector<v1::ForgetKeptRequest> FakeWorker::forget_requests() const {
  MutexLock lock(mu_);
  return forget_requests_;
}

}  // namespace runahead::testing
