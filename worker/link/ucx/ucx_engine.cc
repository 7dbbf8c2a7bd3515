#include "worker/link/ucx/ucx_engine.h"

#include <poll.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "worker/link/eager_payload.h"
#include "worker/link/ucx/ucx_accept.h"
#include "worker/link/ucx/ucx_engine_impl.h"

namespace runahead {
namespace {

// In front of every header. Little-endian, as all hosts that we build for are.
struct WirePrefix {
  uint32_t magic = 0x5241555B;  // says: ours, of this version
  uint16_t kind = 0;
  uint16_t reserved = 0;
  uint64_t from = 0;  // incarnations
  uint64_t to = 0;
  uint32_t from_epoch = 0;
  uint32_t to_epoch = 0;
  uint32_t generation = 0;  // which connection of the two it is
  uint32_t unused = 0;
  std::array<char, 16> proof{};  // see Sign
  uint64_t header_hash = 0;      // xxHash64 of kind and header
};

// UCX does not say over which connection a message came, so each one proves that its sender has the cluster's key. The
// proof covers who sends to whom over which of their connections; for who sees no traffic that is enough.
void Sign(WirePrefix& prefix, const ClusterKey& key) {
  WirePrefix ends = prefix;
  ends.kind = 0;
  ends.proof = {};
  ends.header_hash = 0;
  const std::string proof =
      key.Proof(absl::StrCat("runahead ucx", absl::string_view(reinterpret_cast<const char*>(&ends), sizeof(ends))));
  std::copy_n(proof.begin(), prefix.proof.size(), prefix.proof.begin());
}

// A header comes as it was sent, or the connection ends. The bytes of a message have no checksum here; who sends them
// has one.
uint64_t HashOf(uint16_t kind, std::string_view header) {
  return XXH64(header.data(), header.size(), /*seed=*/kind);
}

bool Signed(const WirePrefix& prefix, const ClusterKey& key) {
  WirePrefix right = prefix;
  Sign(right, key);
  return SameProof({prefix.proof.data(), prefix.proof.size()}, {right.proof.data(), right.proof.size()});
}

// UCX wakes the thread for its own work; for all else the thread looks at least this often.
constexpr int kIdleMillis = 500;
constexpr int kDyingMillis = 5;
constexpr int kUnansweredMillis = 50;

}  // namespace

class UcxEngine::Impl::RendezvousPayload final : public MessagePayload {
 public:
  RendezvousPayload(Impl* engine, void* descriptor, const PeerKey& from, const std::shared_ptr<Peer>& peer, size_t size)
      : engine_(engine),
        commands_(engine->commands_),
        descriptor_(descriptor),
        from_(from),
        peer_(peer),
        known_(peer != nullptr),
        size_(size) {}
  ~RendezvousPayload() override {
    if (descriptor_ == nullptr) return;
    commands_->Post([engine = engine_, descriptor = descriptor_] { engine->Discard(descriptor); });
  }
  size_t size() const override { return size_; }
  void Accept(std::vector<BufferRef> into, ReceiveDone done) override {
    void* descriptor = std::exchange(descriptor_, nullptr);
    const auto receive = [engine = engine_, descriptor, from = from_, peer = peer_, known = known_,
                          into = std::move(into), done] {
      engine->Receive(descriptor, known ? peer.lock() : engine->FindPeer(from), into, done);
    };
    if (!commands_->Post(receive)) done(absl::UnavailableError("the engine has stopped"), {});
  }

 private:
  Impl* const engine_;  // used by commands only, which run while it lives
  const std::shared_ptr<CommandQueue> commands_;
  void* descriptor_;
  const PeerKey from_;
  const std::weak_ptr<Peer> peer_;
  const bool known_;  // the peer, when the offer came: only its connection of then has the bytes
  const size_t size_;
};

UcxEngine::Impl::Impl(std::unique_ptr<UcxContext> context, const UcxOptions& options)
    : context_(std::move(context)),
      self_{context_->address(), options.incarnation, {}, options.epoch},
      key_(options.key) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = 0;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = &Impl::OnMessage;
  param.arg = this;
  RUNAHEAD_CHECK(ucp_worker_set_am_recv_handler(context_->worker(), &param) == UCS_OK);
  context_->OnConnection([this](ucp_conn_request_h request) { HandleConnection(request); });
  thread_ = std::thread([this] { Loop(); });
}

UcxEngine::Impl::~Impl() {
  Post([this] {
    Stop(EventSource());
    ending_ = true;
  });
  thread_.join();
  context_->StopListening();
  context_.reset();
  for (const auto& peer : abandoned_) {
    for (Op* op : peer->ops) delete op;
  }
}

void UcxEngine::Impl::PostAndWait(std::function<void()> command) {
  RUNAHEAD_CHECK(std::this_thread::get_id() != thread_.get_id());
  EventSource ran;
  const bool posted = Post([&command, ran] {
    command();
    ran.Fire(absl::OkStatus());
  });
  if (posted) ran.event().Wait().IgnoreError();
}

void UcxEngine::Impl::Loop() {
  for (;;) {
    RunCommands();
    CheckAnswers();
    AdvanceDying();
    if (ending_ && dying_.empty() && closing_.empty()) break;
    if (ucp_worker_progress(context_->worker()) > 0) continue;
    Sleep();
  }
  commands_->Close();
  RunCommands();
}

void UcxEngine::Impl::RunCommands() {
  for (const auto& command : commands_->TakeAll()) command();
}

void UcxEngine::Impl::Sleep() {
  if (ucp_worker_arm(context_->worker()) != UCS_OK) return;  // something came in between
  pollfd descriptors[] = {{context_->event_fd(), POLLIN, 0}, {commands_->fd(), POLLIN, 0}};
  poll(descriptors, 2,
       !dying_.empty() || !closing_.empty()     ? kDyingMillis
       : unanswered_ > 0 || !strangers_.empty() ? kUnansweredMillis
                                                : kIdleMillis);
}

void UcxEngine::Impl::Connect(const PeerId& id, Done on_death) {
  absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
  if (!peer.ok()) return on_death(peer.status());
  (*peer)->on_death.push_back(std::move(on_death));
}

void UcxEngine::Impl::Send(const PeerId& id, MessageKind kind, const std::string& header, ConstBufferRef bytes,
                           Done done) {
  absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
  if (!peer.ok()) return done(peer.status());
  SendTo(*peer, kind, header, std::move(bytes), std::move(done));
}

void UcxEngine::Impl::SendTo(const std::shared_ptr<Peer>& peer, MessageKind kind, const std::string& header,
                             ConstBufferRef bytes, Done done) {
  RUNAHEAD_CHECK(header.size() <= kMaxHeader);
  WirePrefix prefix;
  prefix.kind = static_cast<uint16_t>(kind);
  prefix.from = self_.incarnation;
  prefix.from_epoch = self_.epoch;
  prefix.to = peer->id.incarnation;
  prefix.to_epoch = peer->id.epoch;
  prefix.generation = peer->id.generation;
  Sign(prefix, key_);
  prefix.header_hash = HashOf(prefix.kind, header);
  auto* op = new Op{this, peer, {}, {}, {}, std::move(done)};
  op->header.assign(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  op->header += header;
  op->buffers.push_back(std::move(bytes));
  if (kind > MessageKind::kGoodbye && !peer->open) return peer->held.push_back(op);
  // The reply flag tells the receiver which connection it is.
  StartSend(op, kind == MessageKind::kHello ? UCP_AM_SEND_FLAG_REPLY : 0);
}

void UcxEngine::Impl::StartSend(Op* op, uint32_t flags) {
  const BufferRef& bytes = op->buffers.front();
  const void* data = bytes.size == 0 ? nullptr : bytes.data();
  op->peer->ops.insert(op);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags | (bytes.size > kEagerBytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  param.cb.send = &Impl::OnSent;
  param.user_data = op;
  Started(op, ucp_am_send_nbx(op->peer->channels.front()->endpoint, 0, op->header.data(), op->header.size(), data,
                              bytes.size, &param));
}

void UcxEngine::Impl::Open(Peer& peer) {
  if (peer.dying) return;
  peer.open = true;
  for (Op* op : std::exchange(peer.held, {})) StartSend(op, 0);
}

void UcxEngine::Impl::Receive(void* descriptor, const std::shared_ptr<Peer>& from, std::vector<BufferRef> into,
                              ReceiveDone done) {
  if (descriptors_.count(descriptor) == 0) return done(absl::UnavailableError("the engine has stopped"), {});
  if (from == nullptr || from->dying) {
    Discard(descriptor);
    return done(absl::UnavailableError("the peer is gone"), {});
  }
  descriptors_.erase(descriptor);
  Done timed = [first = MonotonicNow(), done = std::move(done)](const absl::Status& status) {
    done(status, {first, MonotonicNow()});
  };
  auto* op = new Op{this, from, {}, std::move(into), {}, std::move(timed)};
  from->ops.insert(op);
  for (const BufferRef& buffer : op->buffers) op->pieces.push_back({buffer.data(), buffer.size});

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &Impl::OnReceived;
  param.user_data = op;
  void* buffer = op->pieces.front().buffer;
  size_t count = op->pieces.front().length;
  if (op->pieces.size() > 1) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
    buffer = op->pieces.data();
    count = op->pieces.size();
  }
  Started(op, ucp_am_recv_data_nbx(context_->worker(), descriptor, buffer, count, &param));
}

void UcxEngine::Impl::Discard(void* descriptor) {
  if (descriptors_.erase(descriptor) > 0) ucp_am_data_release(context_->worker(), descriptor);
}

void UcxEngine::Impl::Started(Op* op, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) return;  // the callback completes it
  Complete(op, UCS_PTR_STATUS(request));
}

void UcxEngine::Impl::OnSent(void* request, ucs_status_t status, void* op) {
  ucp_request_free(request);
  static_cast<Op*>(op)->engine->Complete(static_cast<Op*>(op), status);
}

void UcxEngine::Impl::OnReceived(void* request, ucs_status_t status, size_t, void* op) {
  ucp_request_free(request);
  static_cast<Op*>(op)->engine->Complete(static_cast<Op*>(op), status);
}

void UcxEngine::Impl::Complete(Op* op, ucs_status_t status) {
  // A transfer that fails on a living connection is the first sign of its death: those who care hear of that before.
  if (status != UCS_OK && !op->peer->dying) {
    Kill(std::shared_ptr<Peer>(op->peer), UcxStatus(status, "the peer is gone"), /*say_goodbye=*/false);
  }
  op->peer->ops.erase(op);
  if (op->done) op->done(UcxStatus(status, "the transfer failed"));
  delete op;
}

ucs_status_t UcxEngine::Impl::OnMessage(void* arg, const void* header, size_t header_length, void* data, size_t length,
                                        const ucp_am_recv_param_t* param) {
  const ucp_ep_h over = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 ? param->reply_ep : nullptr;
  return static_cast<Impl*>(arg)->HandleMessage({static_cast<const char*>(header), header_length}, data, length,
                                                (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0, over);
}

ucs_status_t UcxEngine::Impl::HandleMessage(std::string_view header, void* data, size_t length, bool rendezvous,
                                            ucp_ep_h over) {
  WirePrefix prefix;
  const uint32_t magic = prefix.magic;
  if (stopped_ || header.size() < sizeof(prefix)) return UCS_OK;
  std::memcpy(&prefix, header.data(), sizeof(prefix));
  // Not ours, or meant for a process or an epoch that was here before, or of a newer version, or a stranger's:
  // discarded.
  const bool ours = prefix.to == self_.incarnation && prefix.to_epoch == self_.epoch;
  if (prefix.magic != magic || !ours || prefix.kind >= kMessageKinds || !Signed(prefix, key_)) return UCS_OK;
  const PeerKey from{prefix.from, prefix.from_epoch, prefix.generation};
  const auto peer = peers_.find(from);
  if (HashOf(prefix.kind, header.substr(sizeof(prefix))) != prefix.header_hash) {
    if (peer == peers_.end()) return UCS_OK;
    Kill(std::shared_ptr<Peer>(peer->second),
         absl::UnavailableError("what the peer sent came damaged: the network flips bits"),
         /*say_goodbye=*/true);
    return UCS_OK;
  }
  if (peer != peers_.end()) Answered(*peer->second);
  if (prefix.kind <= static_cast<uint16_t>(MessageKind::kGoodbye)) {
    const PeerId sender{std::string(header.substr(sizeof(prefix))), from.incarnation, {}, from.epoch, from.generation};
    HandleOwn(static_cast<MessageKind>(prefix.kind), sender, over);
    return UCS_OK;
  }
  const Handler& handler = handlers_[prefix.kind];
  if (!handler) return UCS_OK;
  Message message{from, header.substr(sizeof(prefix)), nullptr};
  if (!rendezvous) {
    message.payload = std::make_shared<EagerPayload>(data, length);
    handler(message);
    return UCS_OK;
  }
  descriptors_.insert(data);
  message.payload = std::make_shared<RendezvousPayload>(this, data, from, FindPeer(from), length);
  handler(message);
  return UCS_INPROGRESS;  // kept until accepted or discarded
}

UcxEngine::UcxEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UcxEngine::~UcxEngine() = default;

absl::StatusOr<std::unique_ptr<UcxEngine>> UcxEngine::Start(const UcxOptions& options) {
  GuardUcxAccept();
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<UcxContext> context,
                            UcxContext::Create(options.transports, {options.host, options.port}));
  return std::unique_ptr<UcxEngine>(new UcxEngine(std::make_unique<Impl>(std::move(context), options)));
}

const PeerId& UcxEngine::self() const {
  return impl_->self();
}

void UcxEngine::SetHandler(MessageKind kind, Handler handler) {
  RUNAHEAD_CHECK(kind > MessageKind::kGoodbye);
  impl_->PostAndWait([&] { impl_->SetHandler(kind, std::move(handler)); });
}

void UcxEngine::Connect(const PeerId& peer, Done on_death) {
  impl_->Post([impl = impl_.get(), peer, on_death] { impl->Connect(peer, on_death); });
}

void UcxEngine::Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, Done done) {
  const auto send = [impl = impl_.get(), peer, kind, header = std::move(header), bytes = std::move(bytes), done] {
    impl->Send(peer, kind, header, bytes, done);
  };
  if (!impl_->Post(send)) done(absl::UnavailableError("the engine has stopped"));
}

void UcxEngine::Close(const PeerKey& peer) {
  EventSource closed;
  impl_->PostAndWait([&] { impl_->Close(peer, closed); });
  closed.event().Wait().IgnoreError();
}

void UcxEngine::CloseAll(uint64_t incarnation, uint32_t epoch) {
  std::vector<PeerKey> keys;
  impl_->PostAndWait([&] { keys = impl_->KeysOf(incarnation, epoch); });
  for (const PeerKey& key : keys) Close(key);
}

void UcxEngine::Stop() {
  EventSource closed;
  impl_->PostAndWait([&] { impl_->Stop(closed); });
  closed.event().Wait().IgnoreError();
}

std::string UcxEngine::Transport(const PeerId& peer) {
  std::string transport;
  impl_->PostAndWait([&] { transport = impl_->Transport(peer); });
  return transport;
}

}  // namespace runahead
