// The answer of GetTokenizer: an archive in pieces.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/base/drain_gate.h"
#include "server/engine/open_writes.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace runahead {

struct SummedArchive {
  std::shared_ptr<const std::string> bytes;  // not empty
  std::string sha256;                        // of them, in hexadecimal
};

// Thread-safe. Lives, by holding itself, until gRPC is done with it.
class TokenizerStream final : public grpc::ServerWriteReactor<vllm::grpc::engine::GetTokenizerChunk>,
                              public OpenWrite,
                              public std::enable_shared_from_this<TokenizerStream> {
 public:
  // Bytes of a chunk's data.
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  // What a stream takes whose client takes nothing: a chunk, and the same as gRPC has it.
  static constexpr int64_t kMemory = int64_t{2 * kChunkBytes};

  // What it needs of its service, and gives back at its end.
  struct Holds {
    OpenWrites& open;
    Clock& clock;
    DrainGate::Pass pass;
    ByteBudget::Lease memory;  // kMemory, where an archive is to be sent
  };
  static std::shared_ptr<TokenizerStream> Create(grpc::CallbackServerContext& context, Holds holds);

  // Sends `archive`, or ends with its error. Called once, on any thread.
  void Send(absl::StatusOr<std::shared_ptr<const SummedArchive>> archive) RUNAHEAD_EXCLUDES(mu_);

  void CutIfStalled(absl::Time now, absl::Duration timeout) override RUNAHEAD_EXCLUDES(mu_);
  void Abort(const EngineCaller&, const absl::Status&) override {}  // it has no name

 private:
  TokenizerStream(grpc::CallbackServerContext& context, Holds holds)
      : open_(holds.open),
        clock_(holds.clock),
        context_(&context),
        pass_(std::move(holds.pass)),
        memory_(std::move(holds.memory)) {}
  void OnWriteDone(bool ok) override RUNAHEAD_EXCLUDES(mu_);
  void OnDone() override RUNAHEAD_EXCLUDES(mu_);
  void Next() RUNAHEAD_REQUIRES(mu_);
  void End(const grpc::Status& status) RUNAHEAD_REQUIRES(mu_);

  OpenWrites& open_;
  Clock& clock_;
  Mutex mu_;
  grpc::CallbackServerContext* context_ RUNAHEAD_GUARDED_BY(mu_);  // null once the call is done
  DrainGate::Pass pass_ RUNAHEAD_GUARDED_BY(mu_);
  ByteBudget::Lease memory_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<TokenizerStream> itself_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<const SummedArchive> archive_ RUNAHEAD_GUARDED_BY(mu_);
  size_t sent_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  vllm::grpc::engine::GetTokenizerChunk writing_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Time write_began_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfiniteFuture();
};

}  // namespace runahead
