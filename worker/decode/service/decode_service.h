// The Decode service of worker.proto: leases of the KV store, and token streams from the engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "worker/decode/engine.h"
#include "worker/decode/service/step_time.h"
#include "worker/decode/service/token_stream.h"
#include "worker/kv/store.h"

namespace runahead {

struct DecodeServiceOptions {
  // A Generate stream whose reader takes nothing for this long is cancelled: it would hold its memory for ever.
  absl::Duration stall_timeout = absl::Seconds(60);
  // Called whenever a lease came or went, on any thread; must not block. For gauges.
  std::function<void()> leases_changed = {};
  // From where on KV of a prompt of so many tokens is needed where X of all of it comes, at most the prompt: steps will
  // recompute what lies before. None: X of it is not wanted. On any thread; absent: from 0 on.
  std::function<std::optional<int64_t>(int64_t prompt_tokens)> kv_from = {};
  // By how many seconds each step is expected to take longer where X of a prompt of so many tokens, which is wanted,
  // cannot come; 0: by nothing, or nobody knows. On any thread; absent: 0.
  std::function<double(int64_t prompt_tokens)> lost_without_x = {};
  int64_t max_batch = DecodeEngineOptions().max_batch;  // the engine's
  std::shared_ptr<const StepTime> step_time = nullptr;  // the engine's; null: not known
};

// Thread-safe; no call blocks. Engine, store and clock outlive the service, and the service outlives the server, which
// must be gone before the engine is.
class DecodeService final : public v1::Decode::CallbackService {
 public:
  DecodeService(DecodeEngine& engine, KvStore& store, DecodeServiceOptions options, Clock& clock = RealClock());
  ~DecodeService() override;

  // The server's gate, once the server is there: from then on Reserve and Generate pass through it.
  void SetGate(DrainGate& gate) { gate_ = &gate; }

  // Refuses Reserve from now on, with UNAVAILABLE; who has a lease may use it.
  void StopReserving() { reserving_ = false; }

  // Says what is taken and free now, and what was evicted since the router had heard of `evictions_heard` evictions.
  v1::DecodeLoad Load(uint64_t evictions_heard = 0) RUNAHEAD_EXCLUDES(mu_);

  // Ends all Generate calls that are open now. Their sequences end at the next step.
  void CancelAll() RUNAHEAD_EXCLUDES(mu_);

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                  v1::RenewReply* reply) override;
  grpc::ServerWriteReactor<v1::DecodeReply>* Generate(grpc::CallbackServerContext* context,
                                                      const v1::DecodeRequest* request) override;

 private:
  absl::StatusOr<DrainGate::Pass> Enter();
  // From where on KV of the prompt is to arrive beside X of all of it; none: without X.
  std::optional<int64_t> KvFrom(const v1::ReserveRequest& request) const;
  // INVALID_ARGUMENT names the field; FAILED_PRECONDITION, OUT_OF_RANGE and UNAVAILABLE as worker.proto says.
  absl::Status CheckReserve(const v1::ReserveRequest& request) const;
  // Of least_known_tokens and what goes with it, as CheckReserve.
  absl::Status CheckKnown(const v1::ReserveRequest& request) const;
  // The lease that `request`, which was checked and which it refers to, asks for. It grows where it may and the engine
  // can park it.
  LeaseRequest LeaseFor(const v1::ReserveRequest& request) const;
  void LeasesChanged() const;
  void WatchForStalls() RUNAHEAD_EXCLUDES(mu_);
  // Those whose calls are open; forgets the others.
  std::vector<std::shared_ptr<TokenStream>> OpenStreams() RUNAHEAD_REQUIRES(mu_);

  DecodeEngine& engine_;
  KvStore& store_;
  const DecodeServiceOptions options_;
  Clock& clock_;
  std::atomic<DrainGate*> gate_{nullptr};
  std::atomic<bool> reserving_{true};

  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<TokenStream>> streams_ RUNAHEAD_GUARDED_BY(mu_);  // those gone are swept by the watch
  std::thread watch_;
};

}  // namespace runahead
