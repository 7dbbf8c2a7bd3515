#include "server/router/cache_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/known_index.h"
#include "server/router/worker_call.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// A worker answers from memory: one that takes longer hangs, or its network is away.
constexpr absl::Duration kCachePatience = absl::Seconds(2);

std::string WhyNot(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

grpc::ServerUnaryReactor* RefuseCall(const absl::Status& status) {
  auto* const reactor = new HoldingReactor(DrainGate::Pass());
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

struct CacheService::Round {
  HoldingReactor* const reactor;          // lives until the last has answered
  const std::optional<std::string> salt;  // of the call's key; absent where there are no keys: it is about all
  std::atomic<int> awaited = 1;           // workers, and who asks them
};

CacheService::CacheService(const RouterParts& parts, CallDoor door, KeyDoor* keys)
    : MessageService(WithKeys(std::move(door), keys)), parts_(parts), keys_(keys) {
  Unary("Show", &CacheService::Show);
  Unary("Empty", &CacheService::Empty);
}

absl::StatusOr<std::shared_ptr<CacheService::Round>> CacheService::Begin(const grpc::ServerContextBase& context) {
  DrainGate* const gate = gate_;
  if (gate == nullptr) return absl::UnavailableError("the router is starting");
  RUNAHEAD_ASSIGN_OR_RETURN(DrainGate::Pass pass, gate->Enter());
  std::optional<std::string> salt;
  if (keys_ != nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<KeyAccount> account, keys_->AccountOf(context));
    salt = account->name();
  }
  return std::shared_ptr<Round>(new Round{new HoldingReactor(std::move(pass)), std::move(salt)});
}

void CacheService::Answered(Round& round) {
  if (--round.awaited == 0) round.reactor->Finish(grpc::Status::OK);
}

template <typename Part, typename BeginAsking>
void CacheService::AskWorkers(Round& round, google::protobuf::RepeatedPtrField<Part>& workers,
                              const BeginAsking& begin) {
  std::vector<std::pair<std::shared_ptr<const LiveWorker>, Part*>> there;
  for (size_t seat = 0; seat < parts_.fleet.workers().size(); ++seat) {
    const int index = static_cast<int>(seat);
    std::string address = parts_.fleet.address(index);
    if (address.empty() || !parts_.fleet.workers()[seat].decodes()) continue;
    Part* const part = workers.Add();
    part->set_address(std::move(address));
    const std::vector<std::shared_ptr<const LiveWorker>> live = parts_.fleet.Live({seat});
    if (live.empty()) {
      part->set_error(parts_.fleet.Note(index));
      continue;
    }
    part->set_name(live[0]->capabilities.name());
    there.emplace_back(live[0], part);
  }
  for (const auto& [worker, part] : there) {
    ++round.awaited;
    parts_.work->Start(begin(worker, part));
  }
}

grpc::ServerUnaryReactor* CacheService::Show(grpc::CallbackServerContext* context,
                                             const v1::ShowCacheRequest* /*request*/, v1::ShowCacheResponse* response) {
  absl::StatusOr<std::shared_ptr<Round>> begun = Begin(*context);
  if (!begun.ok()) return RefuseCall(begun.status());
  const std::shared_ptr<Round> round = *std::move(begun);
  const KnownBeginnings::Size size = parts_.known->SizeOfAll(round->salt);
  response->set_on(parts_.known->on());
  response->set_key(round->salt.value_or(""));
  response->set_index_tokens(size.tokens);
  response->set_index_bytes(size.bytes);
  if (keys_ == nullptr) {
    v1::ShowCacheResponse::Totals& totals = *response->mutable_totals();
    totals.set_prompt_tokens(parts_.metrics.prompt_tokens());
    totals.set_known_by_decode(parts_.metrics.known_prompt_tokens(RestBy::kDecode));
    totals.set_known_by_chain(parts_.metrics.known_prompt_tokens(RestBy::kChain));
  }
  AskWorkers(*round, *response->mutable_workers(),
             [&](const std::shared_ptr<const LiveWorker>& worker, v1::CacheOfWorker* shown) {
               return Look(round, worker, shown);
             });
  Answered(*round);
  return round->reactor;
}

Task<> CacheService::Look(std::shared_ptr<Round> round, std::shared_ptr<const LiveWorker> worker,
                          v1::CacheOfWorker* shown) {
  shown->set_continues(worker->capabilities.keeps_beginnings());
  shown->set_lends(worker->capabilities.lends_beginnings());
  shown->set_index_tokens(parts_.known->SizeOf(*worker, round->salt).tokens);
  v1::LookKeptRequest request;
  request.set_epoch(worker->capabilities.epoch());
  v1::KeptMemory memory;
  const StartUnary start = [&](grpc::ClientContext* context, auto done) {
    worker->kept->async()->Look(context, &request, &memory, std::move(done));
  };
  const std::vector<CancelToken*> ends = {worker->lost.get(), &round->reactor->cancel()};
  const absl::Status status = co_await CallWorker(parts_.clock, *worker->hearing, kCachePatience, ends, start);
  if (status.ok()) {
    *shown->mutable_memory() = std::move(memory);
  } else {
    shown->set_error(WhyNot(status));
  }
  Answered(*round);
}

// The router forgets first, so that it sends nobody to what a worker is about to forget. What it learns meanwhile may
// be stale: that costs a round trip.
grpc::ServerUnaryReactor* CacheService::Empty(grpc::CallbackServerContext* context,
                                              const v1::EmptyCacheRequest* /*request*/,
                                              v1::EmptyCacheResponse* response) {
  absl::StatusOr<std::shared_ptr<Round>> begun = Begin(*context);
  if (!begun.ok()) return RefuseCall(begun.status());
  const std::shared_ptr<Round> round = *std::move(begun);
  response->set_key(round->salt.value_or(""));
  response->set_index_tokens(parts_.known->Forget(round->salt));
  AskWorkers(*round, *response->mutable_workers(),
             [&](const std::shared_ptr<const LiveWorker>& worker, v1::EmptiedWorker* emptied) {
               return Forget(round, worker, emptied);
             });
  Answered(*round);
  return round->reactor;
}

Task<> CacheService::Forget(std::shared_ptr<Round> round, std::shared_ptr<const LiveWorker> worker,
                            v1::EmptiedWorker* emptied) {
  v1::ForgetKeptRequest request;
  request.set_epoch(worker->capabilities.epoch());
  if (round->salt.has_value()) request.set_salt(*round->salt);
  v1::ForgetKeptReply reply;
  const StartUnary start = [&](grpc::ClientContext* context, auto done) {
    worker->kept->async()->Forget(context, &request, &reply, std::move(done));
  };
  // Not ended by a cancel: what was begun is to be finished.
  const std::vector<CancelToken*> ends = {worker->lost.get()};
  const absl::Status status = co_await CallWorker(parts_.clock, *worker->hearing, kCachePatience, ends, start);
  emptied->set_freed_bytes(reply.freed_bytes());
  if (!status.ok()) emptied->set_error(WhyNot(status));
  Answered(*round);
}

}  // namespace runahead
