// One Generate call: takes tokens from the engine without ever blocking it, and writes them as fast as the reader
// reads.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "worker/decode/engine.h"

namespace runahead {

// One write is in flight; tokens that come meanwhile are merged into the next one, never dropped. Lives until gRPC is
// done with the call and the engine has let go of it.
class TokenStream final : public grpc::ServerWriteReactor<v1::DecodeReply>,
                          public DecodeSink,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  // `pass` is held until the call is over. `ended` runs before the status is sent.
  TokenStream(grpc::CallbackServerContext& context, DecodeEngine& engine, Clock& clock, DrainGate::Pass pass,
              std::function<void()> ended);

  // Hands the sequence to the engine, or ends the call with the engine's refusal.
  void Begin(DecodeSequence sequence) RUNAHEAD_EXCLUDES(mu_);
  // Ends the call with a status without ever having begun.
  void Refuse(absl::Status status) RUNAHEAD_EXCLUDES(mu_);
  // Ends the call, and with it the sequence, whatever the reader does.
  void Cancel() RUNAHEAD_EXCLUDES(mu_);
  // Cancels the call when the reader has not taken a message for longer than `timeout`. True when it did.
  bool CancelIfStalled(absl::Duration timeout) RUNAHEAD_EXCLUDES(mu_);

  // How many tokens its sequence has left at most; nothing unless it has been in a step, is not parked and has not
  // ended.
  std::optional<int64_t> Remaining() RUNAHEAD_EXCLUDES(mu_);

  void OnToken(Sampled token) override RUNAHEAD_EXCLUDES(mu_);
  void OnParked(bool parked) override RUNAHEAD_EXCLUDES(mu_);
  void OnMoved(const MoveOutcome& outcome) override RUNAHEAD_EXCLUDES(mu_);
  void OnEnd(absl::Status status) override RUNAHEAD_EXCLUDES(mu_);
  void OnWriteDone(bool ok) override RUNAHEAD_EXCLUDES(mu_);
  void OnCancel() override RUNAHEAD_EXCLUDES(mu_);
  void OnDone() override RUNAHEAD_EXCLUDES(mu_);

 private:
  // Starts what can be started now: the next write, or the end.
  void Pump() RUNAHEAD_REQUIRES(mu_);
  void WriteNext() RUNAHEAD_REQUIRES(mu_);

  grpc::CallbackServerContext& context_;  // valid until OnDone
  DecodeEngine& engine_;
  Clock& clock_;
  const std::function<void()> ended_callback_;

  Mutex mu_;
  DrainGate::Pass pass_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<TokenStream> self_ RUNAHEAD_GUARDED_BY(mu_);  // gRPC's hold
  std::optional<SequenceNumber> number_ RUNAHEAD_GUARDED_BY(mu_);
  bool cancelled_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int64_t remaining_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // tokens, at most
  bool ran_ RUNAHEAD_GUARDED_BY(mu_) = false;       // it has been in a step
  bool parked_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::shared_ptr<SpanRecorder> spans_ RUNAHEAD_GUARDED_BY(mu_);  // null: not traced, or on their way
  v1::DecodeReply waiting_ RUNAHEAD_GUARDED_BY(mu_);              // tokens for the next write
  std::optional<v1::MoveEnd> move_ RUNAHEAD_GUARDED_BY(mu_);      // for the write behind those
  v1::DecodeReply writing_ RUNAHEAD_GUARDED_BY(mu_);              // gRPC's while in_flight_
  bool in_flight_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::Time write_began_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ RUNAHEAD_GUARDED_BY(mu_);
  bool finished_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool done_ RUNAHEAD_GUARDED_BY(mu_) = false;  // the context is gone
};

}  // namespace runahead
