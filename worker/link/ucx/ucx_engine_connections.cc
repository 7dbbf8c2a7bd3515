// How the engine makes connections, answers, watches and ends them.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "server/base/logging.h"
#include "worker/link/ucx/ucx_engine_impl.h"

namespace runahead {
namespace {

// UCX watches a connection once it is made; nobody watches the making. A living peer's progress thread answers in
// milliseconds.
constexpr absl::Duration kAnswer = absl::Seconds(2);
// A goodbye that cannot leave in this time would not be read either.
constexpr absl::Duration kFarewell = absl::Milliseconds(50);
// After a close by force UCX completes everything at its next turns, but, where the user let shared memory in
// (UCX_TLS), for sends that wait for an answer of a peer that died with its queue full (seen with 1.13, whose flush of
// that queue never ends). In this time all that the peer had sent is taken in; after it nothing can touch the buffers.
constexpr absl::Duration kGiveUp = absl::Milliseconds(250);

}  // namespace

absl::StatusOr<std::shared_ptr<UcxEngine::Impl::Peer>> UcxEngine::Impl::Reach(const PeerId& id) {
  if (stopped_) return absl::UnavailableError("the engine has stopped");
  if (const auto found = peers_.find(id.key()); found != peers_.end()) {
    if (found->second->id.address == id.address) return found->second;
    return absl::InvalidArgumentError(absl::StrCat(Describe(id.key()), " is known at another link address"));
  }
  if (HasEnded(id.key())) return absl::UnavailableError("the edge's connection has ended");
  auto peer = std::make_shared<Peer>();
  peer->id = id;
  auto channel = std::make_unique<Channel>();
  channel->engine = this;
  channel->peer = peer;
  RUNAHEAD_ASSIGN_OR_RETURN(channel->endpoint, context_->Connect(id.address, &Impl::OnEndpointError, channel.get()));
  peer->channels.push_back(std::move(channel));
  peers_.emplace(id.key(), peer);
  peer->answer_by = MonotonicNow() + kAnswer;
  ++unanswered_;
  SendTo(peer, MessageKind::kHello, self_.address, ConstBufferRef(),
         [this, raw = peer.get()](const absl::Status& sent) {
           if (sent.ok()) Open(*raw);
         });
  if (peer->dying) return absl::UnavailableError("the peer is gone");
  return peer;
}

std::shared_ptr<UcxEngine::Impl::Peer> UcxEngine::Impl::FindPeer(const PeerKey& key) const {
  const auto found = peers_.find(key);
  return found == peers_.end() ? nullptr : found->second;
}

void UcxEngine::Impl::HandleConnection(ucp_conn_request_h request) {
  if (stopped_) return context_->Reject(request);
  auto channel = std::make_unique<Channel>();
  channel->engine = this;
  channel->hello_by = MonotonicNow() + kAnswer;
  const absl::StatusOr<ucp_ep_h> endpoint = context_->Accept(request, &Impl::OnEndpointError, channel.get());
  if (!endpoint.ok()) {
    LogWarning("link", "a connection could not be accepted: ", endpoint.status().message());
    return;
  }
  channel->endpoint = *endpoint;
  strangers_.emplace(*endpoint, std::move(channel));
}

void UcxEngine::Impl::HandleOwn(MessageKind kind, const PeerId& from, ucp_ep_h over) {
  const auto peer = peers_.find(from.key());
  if (kind == MessageKind::kGoodbye && peer != peers_.end()) {
    Post([this, dead = peer->second] {
      Kill(dead, absl::UnavailableError("the peer closed the connection"), /*say_goodbye=*/false);
    });
  } else if (kind == MessageKind::kHello) {
    HandleHello(from, over);
  }
}

void UcxEngine::Impl::HandleHello(const PeerId& from, ucp_ep_h over) {
  const auto stranger = strangers_.find(over);
  if (stranger == strangers_.end()) return;
  const auto known = peers_.find(from.key());
  if (known != peers_.end() && known->second->id.address != from.address) return;  // not who it says it is
  std::unique_ptr<Channel> channel = std::move(stranger->second);
  strangers_.erase(stranger);
  if (HasEnded(from.key())) return closing_.push_back(std::move(channel));
  auto [found, is_new] = peers_.try_emplace(from.key(), nullptr);
  if (is_new) {
    found->second = std::make_shared<Peer>();
    found->second->id = from;
    ++unanswered_;  // until Answered
  }
  const std::shared_ptr<Peer> peer = found->second;
  channel->peer = peer;
  peer->channels.push_back(std::move(channel));
  Answered(*peer);
  Post([this, peer, is_first = is_new] {
    if (peer->dying) return;
    SendTo(peer, MessageKind::kHelloAnswer, "", ConstBufferRef(),
           [this, raw = peer.get(), is_first](const absl::Status& sent) {
             if (is_first && sent.ok()) Open(*raw);
           });
  });
}

void UcxEngine::Impl::Answered(Peer& peer) {
  if (std::exchange(peer.answered, true)) return;
  --unanswered_;
  LogInfo("link", "connected to ", Describe(peer.id.key()), " over ", Transport(peer.id));
}

void UcxEngine::Impl::CheckAnswers() {
  if (unanswered_ == 0 && strangers_.empty()) return;
  const absl::Time now = MonotonicNow();
  std::vector<ucp_ep_h> mute;
  for (const auto& [endpoint, channel] : strangers_) {
    if (now >= channel->hello_by) mute.push_back(endpoint);
  }
  for (const ucp_ep_h endpoint : mute) {
    closing_.push_back(std::move(strangers_.at(endpoint)));
    strangers_.erase(endpoint);
  }
  std::vector<std::shared_ptr<Peer>> silent;
  for (const auto& [key, peer] : peers_) {
    if (!peer->answered && now >= peer->answer_by) silent.push_back(peer);
  }
  for (const auto& peer : silent)
    Kill(peer, absl::UnavailableError("the peer did not answer; does it have the same cluster_key?"),
         /*say_goodbye=*/false);
}

void UcxEngine::Impl::OnEndpointError(void* arg, ucp_ep_h endpoint, ucs_status_t status) {
  auto* channel = static_cast<Channel*>(arg);
  Impl* engine = channel->engine;
  engine->Post([engine, endpoint, peer = channel->peer.lock(), status] {
    if (peer != nullptr) return engine->Kill(peer, UcxStatus(status, "the peer is gone"), /*say_goodbye=*/false);
    const auto stranger = engine->strangers_.find(endpoint);
    if (stranger == engine->strangers_.end()) return;
    engine->closing_.push_back(std::move(stranger->second));
    engine->strangers_.erase(stranger);
  });
}

void UcxEngine::Impl::Kill(const std::shared_ptr<Peer>& peer, const absl::Status& why, bool say_goodbye) {
  if (std::exchange(peer->dying, true)) return;
  LogInfo("link", "connection to ", Describe(peer->id.key()), " ends: ", why.message());
  peers_.erase(peer->id.key());
  ended_.Add(peer->id.key());
  if (!peer->answered) --unanswered_;
  dying_.push_back(peer);
  for (const Done& on_death : std::exchange(peer->on_death, {})) on_death(why);
  for (Op* op : std::exchange(peer->held, {})) Complete(op, UCS_ERR_CANCELED);
  peer->give_up_at = MonotonicNow() + kGiveUp;
  if (!say_goodbye) return;
  peer->farewell = true;
  peer->farewell_until = MonotonicNow() + kFarewell;
  SendTo(peer, MessageKind::kGoodbye, "", ConstBufferRef(),
         [raw = peer.get()](const absl::Status&) { raw->farewell = false; });
}

void UcxEngine::Impl::AdvanceDying() {
  std::vector<std::unique_ptr<Channel>> open;
  for (auto& channel : std::exchange(closing_, {})) {
    if (Close(*channel)) continue;
    (MonotonicNow() < channel->give_up_at ? open : abandoned_channels_).push_back(std::move(channel));
  }
  closing_ = std::move(open);
  for (size_t i = 0; i < dying_.size();) {
    const std::shared_ptr<Peer> peer = dying_[i];
    if (!Settle(peer)) {
      ++i;
      continue;
    }
    dying_.erase(dying_.begin() + static_cast<std::ptrdiff_t>(i));
    peer->closed.clear();
  }
}

bool UcxEngine::Impl::Settle(const std::shared_ptr<Peer>& peer) {
  const absl::Time now = MonotonicNow();
  if (peer->farewell && now < peer->farewell_until) return false;
  bool closed = true;
  for (const auto& channel : peer->channels) closed = Close(*channel) && closed;
  if (closed && peer->ops.empty()) return true;
  if (now < peer->give_up_at) return false;
  LogInfo("link", "UCX left ", peer->ops.size(), " transfers of a closed connection open; they are taken back");
  abandoned_.push_back(peer);
  for (Op* op : peer->ops) {
    op->buffers.clear();
    if (op->done) std::exchange(op->done, nullptr)(absl::UnavailableError("the peer is gone"));
  }
  return true;
}

bool UcxEngine::Impl::Close(Channel& channel) {
  if (!channel.close_started) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    channel.close_started = true;
    channel.give_up_at = MonotonicNow() + kGiveUp;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(channel.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) channel.close_request = request;
  }
  if (channel.close_request != nullptr && ucp_request_check_status(channel.close_request) != UCS_INPROGRESS) {
    ucp_request_free(channel.close_request);
    channel.close_request = nullptr;
  }
  return channel.close_request == nullptr;
}

void UcxEngine::Impl::Close(const PeerKey& key, const EventSource& closed) {
  // Fires when the last of the peer's lives has let it go: one may be dying while the next was connected already.
  const std::shared_ptr<void> all_closed(nullptr, [closed](void*) { closed.Fire(absl::OkStatus()); });
  for (const auto& peer : dying_) {
    if (peer->id.key() == key) peer->closed.push_back(all_closed);
  }
  const auto found = peers_.find(key);
  if (found == peers_.end()) return;
  const std::shared_ptr<Peer> peer = found->second;
  peer->closed.push_back(all_closed);
  Kill(peer, absl::UnavailableError("the connection was closed here"), /*say_goodbye=*/true);
}

void UcxEngine::Impl::Stop(const EventSource& closed) {
  const std::shared_ptr<void> all_closed(nullptr, [closed](void*) { closed.Fire(absl::OkStatus()); });
  stopped_ = true;
  for (void* descriptor : std::vector<void*>(descriptors_.begin(), descriptors_.end())) Discard(descriptor);
  std::vector<std::shared_ptr<Peer>> alive;
  for (const auto& [key, peer] : peers_) alive.push_back(peer);
  for (auto& [endpoint, stranger] : std::exchange(strangers_, {})) closing_.push_back(std::move(stranger));
  for (const auto& peer : alive) Kill(peer, absl::UnavailableError("the engine was closed here"), /*say_goodbye=*/true);
  for (const auto& peer : dying_) peer->closed.push_back(all_closed);
}

std::vector<PeerKey> UcxEngine::Impl::KeysOf(uint64_t incarnation, uint32_t epoch) const {
  std::vector<PeerKey> keys;
  const auto add = [&](const PeerKey& key) {
    if (key.incarnation == incarnation && key.epoch == epoch) keys.push_back(key);
  };
  for (const auto& [key, peer] : peers_) add(key);
  for (const auto& peer : dying_) add(peer->id.key());
  return keys;
}

// Not ucp_ep_print_info, which names the lanes: it reads freed memory when the endpoint has failed and UCX has yet to
// say so (seen with 1.13). UCX_LOG_LEVEL=info makes UCX name them.
std::string UcxEngine::Impl::Transport(const PeerId& id) const {
  return peers_.contains(id.key()) ? absl::StrCat("ucx ", id.address) : "";
}

}  // namespace runahead
