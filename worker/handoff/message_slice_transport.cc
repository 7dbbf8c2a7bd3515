#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_slice_wire.h"

namespace runahead {
namespace {

// What engine callbacks share with the transport; outlives it while they are under way.
class SlicesUnderWay : public std::enable_shared_from_this<SlicesUnderWay> {
 public:
  explicit SlicesUnderWay(MessageEngine& engine) : engine_(engine) {}

  void Send(const PeerId& to, const SliceHeader& header, ConstBufferRef bytes, SliceTransport::Done done)
      RUNAHEAD_EXCLUDES(mu_) {
    uint64_t request = 0;
    bool stopped = false;
    {
      MutexLock lock(mu_);
      stopped = stopped_;
      request = next_++;
      if (!stopped) requests_.emplace(request, Request{to, std::move(done), false, std::nullopt});
      // Handed to the engine under the lock, so that no send overtakes it.
      if (!stopped && connected_.emplace(to.key(), to).second) {
        engine_.Connect(to, [self = shared_from_this(), to](const absl::Status& why) { self->OnDeath(to, why); });
      }
    }
    if (stopped) {
      bytes = {};
      return done(absl::UnavailableError("the hand-off has stopped"));
    }
    engine_.Send(to, MessageKind::kSlice, PackSlice(request, header, engine_.self().address), std::move(bytes),
                 [self = shared_from_this(), request](const absl::Status& status) { self->OnSent(request, status); });
  }

  void OnVerdict(const Message& message) RUNAHEAD_EXCLUDES(mu_) {
    VerdictWire wire;
    if (message.header.size() != sizeof(wire)) return;
    std::memcpy(&wire, message.header.data(), sizeof(wire));
    if (wire.verdict < static_cast<uint64_t>(SliceVerdict::kAccepted) ||
        wire.verdict > static_cast<uint64_t>(SliceVerdict::kBadForm)) {
      return;
    }
    std::optional<Request> ended;
    {
      MutexLock lock(mu_);
      const auto found = requests_.find(wire.request);
      if (found == requests_.end() || found->second.to.key() != message.from || found->second.result) return;
      found->second.result = static_cast<SliceVerdict>(wire.verdict);
      ended = TakeIfEnded(wire.request);
    }
    if (ended.has_value()) ended->done(*std::move(ended->result));
  }

  // Closes what slices went over, which ends them.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    std::vector<PeerId> peers;
    {
      MutexLock lock(mu_);
      stopped_ = true;
      for (const auto& [number, request] : requests_) peers.push_back(request.to);
    }
    for (const PeerId& peer : peers) engine_.Close(peer.key());
  }

 private:
  struct Request {
    PeerId to;
    SliceTransport::Done done;
    bool sent = false;  // the bytes may be reused
    std::optional<absl::StatusOr<SliceVerdict>> result;
  };

  // Both ends of a request must be in: its bytes free, its verdict known.
  std::optional<Request> TakeIfEnded(uint64_t number) RUNAHEAD_REQUIRES(mu_) {
    const auto found = requests_.find(number);
    if (!found->second.sent || !found->second.result.has_value()) return std::nullopt;
    Request ended = std::move(found->second);
    requests_.erase(found);
    return ended;
  }

  void OnSent(uint64_t number, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Request> ended;
    {
      MutexLock lock(mu_);
      Request& request = requests_.at(number);
      request.sent = true;
      if (!status.ok() && !request.result.has_value()) request.result = absl::UnavailableError(status.message());
      ended = TakeIfEnded(number);
    }
    if (ended.has_value()) ended->done(*std::move(ended->result));
  }

  void OnDeath(const PeerId& peer, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_) {
    std::vector<Request> ended;
    {
      MutexLock lock(mu_);
      connected_.erase(peer.key());
      std::vector<uint64_t> hit;
      for (auto& [number, request] : requests_) {
        if (!(request.to == peer) || request.result.has_value()) continue;
        request.result = absl::UnavailableError(why.message());
        hit.push_back(number);
      }
      for (const uint64_t number : hit) {
        if (std::optional<Request> request = TakeIfEnded(number)) ended.push_back(*std::move(request));
      }
    }
    for (Request& request : ended) request.done(*std::move(request.result));
  }

  MessageEngine& engine_;
  Mutex mu_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Request> requests_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<PeerKey, PeerId> connected_ RUNAHEAD_GUARDED_BY(mu_);
};

class MessageSliceTransport final : public SliceTransport {
 public:
  explicit MessageSliceTransport(MessageEngine& engine)
      : engine_(engine), slices_(std::make_shared<SlicesUnderWay>(engine)) {
    engine_.SetHandler(MessageKind::kVerdict,
                       [slices = slices_](const Message& message) { slices->OnVerdict(message); });
  }

  void Send(const PeerId& to, const SliceHeader& header, ConstBufferRef bytes, Done done) override {
    slices_->Send(to, header, std::move(bytes), std::move(done));
  }
  void Stop() override {
    slices_->Stop();
    engine_.SetHandler(MessageKind::kVerdict, nullptr);
  }

 private:
  MessageEngine& engine_;
  const std::shared_ptr<SlicesUnderWay> slices_;
};

}  // namespace

std::shared_ptr<SliceTransport> MakeMessageSliceTransport(MessageEngine& engine) {
  return std::make_shared<MessageSliceTransport>(engine);
}

}  // namespace runahead
