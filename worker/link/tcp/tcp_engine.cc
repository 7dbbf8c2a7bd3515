#include "worker/link/tcp/tcp_engine.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "worker/link/tcp/tcp_engine_impl.h"

namespace runahead {
namespace {

constexpr uint64_t kCommands = 0;
constexpr uint64_t kListener = 1;
constexpr int kEvents = 64;

absl::Status Watch(const Descriptor& epoll, int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "watching a socket");
}

}  // namespace

// An offer of a connection, by its number there: it does nothing once that is gone.
class TcpEngine::Impl::OfferedPayload final : public MessagePayload {
 public:
  OfferedPayload(Impl* engine, uint64_t connection, uint64_t transfer, uint64_t size)
      : engine_(engine), commands_(engine->commands_), connection_(connection), transfer_(transfer), size_(size) {}
  ~OfferedPayload() override {
    if (accepted_) return;
    commands_->Post([engine = engine_, connection = connection_, transfer = transfer_] {
      Channel* const channel = engine->Find(connection);
      if (channel == nullptr) return;
      channel->connection->Discard(transfer);
      engine->MarkDirty(*channel);
    });
  }
  size_t size() const override { return size_; }
  void Accept(std::vector<BufferRef> into, ReceiveDone done) override {
    accepted_ = true;
    const auto grant = [engine = engine_, connection = connection_, transfer = transfer_, into = std::move(into),
                        done] {
      Channel* const channel = engine->Find(connection);
      if (channel == nullptr) return done(absl::UnavailableError("the peer is gone"), {});
      channel->connection->Grant(transfer, into, done);
      engine->MarkDirty(*channel);
    };
    if (!commands_->Post(grant)) done(absl::UnavailableError("the engine has stopped"), {});
  }

 private:
  Impl* const engine_;  // used by commands only, which run while it lives
  const std::shared_ptr<CommandQueue> commands_;
  const uint64_t connection_, transfer_;
  const size_t size_;
  bool accepted_ = false;
};

TcpEngine::Impl::Impl(TcpListener listener, Descriptor epoll, const TcpOptions& options)
    : options_(options),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      self_{listener_.address, options.incarnation, {}, options.epoch},
      commands_(options.commands != nullptr ? options.commands : std::make_shared<CommandQueue>()) {
  RUNAHEAD_CHECK(Watch(epoll_, commands_->fd(), kCommands).ok());
  RUNAHEAD_CHECK(Watch(epoll_, listener_.descriptor.get(), kListener).ok());
  thread_ = std::thread([this] { Loop(); });
}

TcpEngine::Impl::~Impl() {
  Post([this] {
    Stop();
    ending_ = true;
  });
  thread_.join();
}

void TcpEngine::Impl::Stop() {
  stopped_ = true;
  std::vector<std::shared_ptr<Peer>> alive;
  for (const auto& [key, peer] : peers_) alive.push_back(peer);
  for (const auto& peer : alive) Kill(peer, absl::UnavailableError("the engine was closed here"));
  while (!strangers_.empty()) Remove(*Find(*strangers_.begin()), absl::UnavailableError("the engine was closed here"));
}

void TcpEngine::Impl::PostAndWait(std::function<void()> command) {
  RUNAHEAD_CHECK(std::this_thread::get_id() != thread_.get_id());
  EventSource ran;
  const bool posted = Post([&command, ran] {
    command();
    ran.Fire(absl::OkStatus());
  });
  if (posted) ran.event().Wait().IgnoreError();
}

void TcpEngine::Impl::Loop() {
  NameThread("links");
  for (;;) {
    RunCommands();
    if (ending_) break;
    Flush();
    WaitForEvents();
    Flush();
  }
  commands_->Close();
  RunCommands();
}

// Each command ends with all that it held before the next begins: what Close waits for is then gone.
void TcpEngine::Impl::RunCommands() {
  for (auto commands = commands_->TakeAll(); !commands.empty(); commands.pop_front()) commands.front()();
}

void TcpEngine::Impl::WaitForEvents() {
  epoll_event events[kEvents];
  const int count = epoll_wait(epoll_.get(), events, kEvents, CheckHellos());
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == kListener) {
      AcceptAll();
    } else if (id != kCommands) {
      HandleEvent(id, events[i].events);
    }
  }
}

void TcpEngine::Impl::HandleEvent(uint64_t id, uint32_t events) {
  Channel* const channel = Find(id);
  if (channel == nullptr) return;  // an event before this one ended it
  if ((events & EPOLLOUT) != 0) MarkDirty(*channel);
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  const absl::Status status = channel->connection->Read();
  if (!status.ok()) return Break(*channel, status);
  if (channel->connection->wants_write()) MarkDirty(*channel);
}

void TcpEngine::Impl::MarkDirty(Channel& channel) {
  if (!std::exchange(channel.dirty, true)) dirty_.push_back(channel.connection->id());
}

void TcpEngine::Impl::Flush() {
  for (const uint64_t id : std::exchange(dirty_, {})) {
    if (Channel* const channel = Find(id)) WriteTo(*channel);
  }
}

void TcpEngine::Impl::WriteTo(Channel& channel) {
  channel.dirty = false;
  if (const absl::Status status = channel.connection->Write(); !status.ok()) return Break(channel, status);
  const bool wants_write = channel.connection->wants_write();
  if (wants_write == channel.wants_write) return;
  channel.wants_write = wants_write;
  epoll_event event{};
  event.events = EPOLLIN | (wants_write ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  event.data.u64 = channel.connection->id();
  RUNAHEAD_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, channel.connection->fd(), &event) == 0);
}

void TcpEngine::Impl::Connect(const PeerId& id, Done on_death) {
  absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
  if (!peer.ok()) return on_death(peer.status());
  (*peer)->on_death.push_back(std::move(on_death));
}

void TcpEngine::Impl::Send(const PeerId& id, MessageKind kind, const std::string& header, ConstBufferRef bytes,
                           Done done) {
  absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
  if (!peer.ok()) return done(peer.status());
  Channel& channel = *(*peer)->channels.front();
  channel.connection->Send(kind, header, std::move(bytes), std::move(done));
  MarkDirty(channel);
}

void TcpEngine::Impl::OnEager(TcpConnection& connection, MessageKind kind, std::string_view header,
                              std::shared_ptr<MessagePayload> payload) {
  Deliver(*Find(connection.id()), kind, header, std::move(payload));
}

void TcpEngine::Impl::OnOffer(TcpConnection& connection, MessageKind kind, std::string_view header, uint64_t transfer,
                              uint64_t bytes) {
  Deliver(*Find(connection.id()), kind, header,
          std::make_shared<OfferedPayload>(this, connection.id(), transfer, bytes));
}

void TcpEngine::Impl::Deliver(const Channel& channel, MessageKind kind, std::string_view header,
                              std::shared_ptr<MessagePayload> payload) {
  const Handler& handler = handlers_[static_cast<size_t>(kind)];
  if (handler) handler({channel.peer->id.key(), header, std::move(payload)});
}

TcpEngine::TcpEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpEngine::~TcpEngine() = default;

absl::StatusOr<std::unique_ptr<TcpEngine>> TcpEngine::Start(const TcpOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp({options.host, options.port}));
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "starting the engine");
  return std::unique_ptr<TcpEngine>(
      new TcpEngine(std::make_unique<Impl>(std::move(listener), std::move(epoll), options)));
}

const PeerId& TcpEngine::self() const {
  return impl_->self();
}

void TcpEngine::SetHandler(MessageKind kind, Handler handler) {
  RUNAHEAD_CHECK(kind > MessageKind::kGoodbye);
  impl_->PostAndWait([&] { impl_->SetHandler(kind, std::move(handler)); });
}

void TcpEngine::Connect(const PeerId& peer, Done on_death) {
  impl_->Post([impl = impl_.get(), peer, on_death] { impl->Connect(peer, on_death); });
}

void TcpEngine::Send(const PeerId& peer, MessageKind kind, std::string header, ConstBufferRef bytes, Done done) {
  const auto send = [impl = impl_.get(), peer, kind, header = std::move(header), bytes = std::move(bytes), done] {
    impl->Send(peer, kind, header, bytes, done);
  };
  if (!impl_->Post(send)) done(absl::UnavailableError("the engine has stopped"));
}

void TcpEngine::Close(const PeerKey& peer) {
  impl_->PostAndWait([&] { impl_->Close(peer); });
}

void TcpEngine::CloseAll(uint64_t incarnation, uint32_t epoch) {
  impl_->PostAndWait([&] {
    for (const PeerKey& key : impl_->KeysOf(incarnation, epoch)) impl_->Close(key);
  });
}

void TcpEngine::Stop() {
  impl_->PostAndWait([&] { impl_->Stop(); });
}

std::string TcpEngine::Transport(const PeerId& peer) {
  std::string transport;
  impl_->PostAndWait([&] { transport = impl_->Transport(peer); });
  return transport;
}

}  // namespace runahead
