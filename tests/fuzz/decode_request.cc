// What a decode worker is asked for: a ReserveRequest, and behind the border a DecodeRequest, called on its service
// over a model without arithmetic. Whatever was asked, nothing is left.
#include <grpcpp/test/default_reactor_test_peer.h>

#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "tests/testing/fake_clock.h"
#include "tests/worker/decode/hash_model.h"
#include "worker/decode/service/decode_service.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

using testing::HashDevice;
using testing::HashModel;

// A decode worker without a network. It is never taken down.
class SmallDecodeWorker {
 public:
  SmallDecodeWorker() {
    auto store = KvStore::Create({HashModel::kLayers, 16, 16 * kKvBlockTokens, 5}, device_, clock_);
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
    DecodeEngineOptions steps;
    steps.step_rows = 64;
    auto engine =
        DecodeEngine::Create(device_, std::make_shared<HashModel>(device_), *store_, std::move(steps), clock_);
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
    DecodeServiceOptions options;
    options.leases_changed = [this] {
      MutexLock lock(mu_);
      changed_.NotifyAll();
    };
    service_ = std::make_unique<DecodeService>(*engine_, *store_, std::move(options), clock_);
  }

  // The lease that was given, or nothing.
  std::optional<v1::LeaseId> Reserve(const v1::ReserveRequest& request) {
    v1::ReserveReply reply;
    const absl::Status status =
        Call([&](grpc::CallbackServerContext& context) { service_->Reserve(&context, &request, &reply); });
    if (!status.ok()) return std::nullopt;
    RUNAHEAD_CHECK(reply.has_lease() && store_->stats().leases == 1 && reply.counted_tokens() >= 1);
    RUNAHEAD_CHECK(reply.counted_tokens() <= request.total_tokens());
    v1::RenewRequest renew;
    v1::RenewReply renewed;
    *renew.mutable_lease() = reply.lease();
    RUNAHEAD_CHECK(
        Call([&](grpc::CallbackServerContext& context) { service_->Renew(&context, &renew, &renewed); }).ok());
    return reply.lease();
  }

  // Asks for tokens and goes away.
  void Generate(const v1::DecodeRequest& request) {
    grpc::CallbackServerContext context;
    grpc::ServerWriteReactor<v1::DecodeReply>* const call = service_->Generate(&context, &request);
    call->OnCancel();
    call->OnDone();
  }

  // Returns when no lease is left, of which `lease`, where there is one, is given back.
  void AwaitNoLeases(const std::optional<v1::LeaseId>& lease) {
    if (lease) store_->Release(LeaseFromProto(*lease));
    MutexLock lock(mu_);
    while (store_->stats().leases > 0 || store_->stats().promised_bytes > 0) {
      changed_.WaitFor(mu_, absl::Milliseconds(1));  // memory comes back behind the lease
    }
    RUNAHEAD_CHECK(service_->Load().slots_used() == 0);
  }

 private:
  // A refusal says something, as a call's status.
  absl::Status Call(const std::function<void(grpc::CallbackServerContext&)>& method) {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer reactor(&context);
    method(context);
    RUNAHEAD_CHECK(reactor.test_status_set());
    const absl::Status status = FromGrpcStatus(reactor.test_status());
    if (!status.ok()) fuzz::CheckRefusal(status, "");
    return status;
  }

  HashDevice device_;
  testing::FakeClock clock_;
  Mutex mu_;
  CondVar changed_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<DecodeService> service_;
};

}  // namespace

void Fuzz(std::string_view input) {
  fuzz::QuietProtobuf();
  static SmallDecodeWorker& worker = *new SmallDecodeWorker;
  const auto pieces = fuzz::Pieces(input, 2);
  v1::ReserveRequest reserve;
  v1::DecodeRequest decode;
  if (!reserve.ParseFromArray(pieces[0].data(), static_cast<int>(pieces[0].size()))) return;
  if (!decode.ParseFromArray(pieces[1].data(), static_cast<int>(pieces[1].size()))) return;
  const std::optional<v1::LeaseId> lease = worker.Reserve(reserve);
  if (lease && decode.has_lease()) *decode.mutable_lease() = *lease;
  worker.Generate(decode);
  worker.AwaitNoLeases(lease);
}

}  // namespace runahead
