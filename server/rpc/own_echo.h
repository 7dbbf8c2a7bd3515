// A process that calls itself, to know how far behind it is with reading what others send.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/hearing.h"
#include "server/base/rare_line.h"

namespace runahead {

// All sockets of a process that gRPC's callbacks serve have one queue and the same few threads. So a call over a pair
// of sockets of our own takes its turns behind all that came before it, and its answer says that this has been read. It
// needs no port, key or place among connections. Nothing is called while nobody asks. Thread-safe.
class OwnEcho final : public Hearing {
 public:
  // Takes two descriptors. UNAVAILABLE where there are none.
  static absl::StatusOr<std::unique_ptr<OwnEcho>> Create();
  ~OwnEcho() override;  // waits for the call that is under way

  // When the last call was made that has come back; the infinite past before the first has. Makes the next one, unless
  // one is under way.
  absl::Time Until(absl::Time now) override RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Call {
    Call() : request(&nothing, 1) {}
    absl::Time asked;  // on the clock of who asked
    absl::Time begun;  // on ours
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request, response;
  };

  // Of the two ends, which gRPC owns from now on.
  OwnEcho(int client, int server);
  void Answered(const grpc::Status& status) RUNAHEAD_EXCLUDES(mu_);

  grpc::CallbackGenericService service_;  // knows no method, and says so
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::GenericStub> stub_;
  RareLine late_{absl::Minutes(1)};
  Mutex mu_;
  CondVar ended_;
  std::optional<Call> call_ RUNAHEAD_GUARDED_BY(mu_);  // under way
  absl::Time until_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace runahead
