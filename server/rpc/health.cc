#include "server/rpc/health.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

absl::flat_hash_set<std::string> WithEmptyName(const std::vector<std::string>& names) {
  absl::flat_hash_set<std::string> all(names.begin(), names.end());
  all.insert("");
  return all;
}

absl::Status TooManyWatch() {
  return absl::ResourceExhaustedError(
      absl::StrCat("as many Watch streams as may, ", HealthService::kMostWatches, ", are open; call Check instead"));
}

}  // namespace

// One stream. One write is in flight; what changes meanwhile is told after it, and what changes back is not told.
struct HealthService::Watcher final : grpc::ServerWriteReactor<Response> {
  Watcher(HealthService& of, std::string peer, std::string name)
      : service(of), peer(std::move(peer)), name(std::move(name)) {}

  void OnWriteDone(bool ok) override {
    MutexLock lock(service.mu_);
    writing = false;
    ok ? service.Tell(*this) : service.End(*this, absl::CancelledError("the client has gone"));
  }
  void OnCancel() override {
    MutexLock lock(service.mu_);
    service.End(*this, absl::CancelledError("the client has gone"));
  }
  void OnDone() override { delete this; }

  HealthService& service;
  const std::string peer;
  const std::string name;
  // Guarded by the service's lock.
  Response response;  // what was said last: at first nothing
  bool writing = false;
  bool ended = false;
};

HealthService::HealthService(const CallDoor& door, const std::vector<std::string>& names)
    : MessageService(door), names_(WithEmptyName(names)) {
  Unary("Check", &HealthService::Check);
  Stream("Watch", &HealthService::Watch);
}

void HealthService::SetServing(bool serving) {
  MutexLock lock(mu_);
  serving_ = serving && !drained_;
  TellAll();
}

bool HealthService::serving() const {
  MutexLock lock(mu_);
  return serving_ && !drained_;
}

void HealthService::Drain() {
  MutexLock lock(mu_);
  drained_ = true;
  serving_ = false;
  TellAll();
}

void HealthService::TellAll() {
  for (const auto& [peer, watchers] : watchers_) {
    for (Watcher* const watcher : watchers) Tell(*watcher);
  }
}

void HealthService::Tell(Watcher& watcher) {
  const Response::ServingStatus status = StatusOf(watcher.name);
  if (watcher.writing || watcher.ended || status == watcher.response.status()) return;
  watcher.response.set_status(status);
  watcher.writing = true;
  watcher.StartWrite(&watcher.response);
}

void HealthService::End(Watcher& watcher, const absl::Status& why) {
  if (std::exchange(watcher.ended, true)) return;
  Remove(watcher);
  watcher.Finish(ToGrpcStatus(why));
}

HealthService::Response::ServingStatus HealthService::StatusOf(const std::string& name) const {
  if (!names_.contains(name)) return Response::SERVICE_UNKNOWN;
  return serving_ ? Response::SERVING : Response::NOT_SERVING;
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::health::v1::HealthCheckRequest* request,
                                               Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  MutexLock lock(mu_);
  const Response::ServingStatus status = StatusOf(request->service());
  if (status == Response::SERVICE_UNKNOWN) {
    reactor->Finish(
        ToGrpcStatus(absl::NotFoundError(absl::StrCat("service: there is no \"", Printable(request->service()),
                                                      "\"; an empty name asks for the server as a whole"))));
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthService::Response>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) {
  auto* const watcher = new Watcher(*this, context->peer(), request->service());
  MutexLock lock(mu_);
  const bool room = watches_ < kMostWatches || MakeRoomFor(watcher->peer);
  watchers_[watcher->peer].push_back(watcher);
  ++watches_;
  room ? Tell(*watcher) : End(*watcher, TooManyWatch());
  return watcher;
}

// By the newest of the connection that has most, if that has more than this one would have.
bool HealthService::MakeRoomFor(const std::string& peer) {
  const auto own = watchers_.find(peer);
  const size_t own_watches = own == watchers_.end() ? 0 : own->second.size();
  const auto most = std::max_element(watchers_.begin(), watchers_.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most->second.size() <= own_watches + 1) return false;
  End(*most->second.back(), TooManyWatch());
  return true;
}

void HealthService::Remove(Watcher& watcher) {
  const auto found = watchers_.find(watcher.peer);
  std::vector<Watcher*>& watchers = found->second;
  watchers.erase(std::find(watchers.begin(), watchers.end(), &watcher));
  if (watchers.empty()) watchers_.erase(found);
  --watches_;
}

}  // namespace runahead
