#include "worker/link/tcp/tcp_engine.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/descriptor_limit.h"
#include "worker/link/tcp/tcp_engine_impl.h"

namespace runahead {
namespace {

// Whose progress thread this one is.
thread_local const CommandQueue* progressing = nullptr;

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
class TcpEngine::Impl::Payload final : public MessagePayload, public std::enable_shared_from_this<Payload> {
 public:
  Payload(Impl* engine, uint64_t connection, std::shared_ptr<const TcpConnection::Offer> offer)
      : engine_(engine), commands_(engine->commands_), connection_(connection), offer_(std::move(offer)) {}
  ~Payload() override {
    if (!answered_) Answer(absl::StatusCode::kCancelled);
  }
  size_t size() const override { return offer_->size; }
  void Accept(Inbound into, ReceiveDone done) override {
    // What accepts it keeps it: while bytes come nobody answers.
    const auto accept = [self = shared_from_this(), into = std::move(into), done] {
      Channel* const channel = self->engine_->Find(self->connection_);
      if (channel == nullptr) return done(absl::UnavailableError("the peer is gone"), {});
      channel->connection->Accept(*self->offer_, into,
                                  [self, done](const absl::Status& status, const Came& came) { done(status, came); });
    };
    if (!Run(accept)) done(absl::UnavailableError("the engine has stopped"), {});
  }
  void Answer(absl::StatusCode answer) override {
    answered_ = true;
    Run([engine = engine_, connection = connection_, transfer = offer_->transfer, answer] {
      if (Channel* const channel = engine->Find(connection)) channel->connection->Answer(transfer, answer);
    });
  }

 private:
  // On the progress thread: at once, where that is this one. False when the engine has stopped.
  bool Run(std::function<void()> command) {
    if (progressing != commands_.get()) return commands_->Post(std::move(command));
    command();
    return true;
  }

  Impl* const engine_;  // used by commands only, which run while it lives
  const std::shared_ptr<CommandQueue> commands_;
  const uint64_t connection_;
  const std::shared_ptr<const TcpConnection::Offer> offer_;
  bool answered_ = false;
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
  EndAndWait([this] { EndAll(); });
  Post([this] { ending_ = true; });
  thread_.join();
}

void TcpEngine::Impl::EndAll() {
  stopped_ = true;
  while (!peers_.empty()) Kill(peers_.begin()->second, absl::UnavailableError("the engine was closed here"));
  while (!strangers_.empty())
    Remove(*Find(strangers_.First().id), absl::UnavailableError("the engine was closed here"));
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

void TcpEngine::Impl::EndAndWait(std::function<void()> command) {
  std::vector<Event> ends;
  PostAndWait([&] {
    command();
    ends = ends_;
  });
  WhenAll(ends).Wait().IgnoreError();
}

void TcpEngine::Impl::Loop() {
  NameThread("links");
  progressing = commands_.get();
  for (;;) {
    RunCommands();
    if (ending_) break;
    Flush();  // what events and commands have queued goes together
    WaitForEvents();
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

void TcpEngine::Impl::SetHandler(MessageKind kind, Handler handler) {
  PostAndWait([&] { handlers_[static_cast<size_t>(kind)] = std::move(handler); });
}

void TcpEngine::Impl::Connect(const PeerId& id, Done on_death) {
  Post([this, id, on_death] {
    absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
    if (!peer.ok()) return on_death(peer.status());
    (*peer)->on_death.push_back(on_death);
  });
}

void TcpEngine::Impl::Send(const PeerId& id, MessageKind kind, std::string header, Outbound bytes, Done done) {
  const auto send = [this, id, kind, header = std::move(header), bytes = std::move(bytes), done] {
    absl::StatusOr<std::shared_ptr<Peer>> peer = Reach(id);
    // Its code is not to be taken for the peer's answer.
    if (!peer.ok()) return done(absl::UnavailableError(peer.status().message()));
    (*peer)->channels.front()->connection->Send(kind, header, bytes, done);
  };
  if (!Post(send)) done(absl::UnavailableError("the engine has stopped"));
}

void TcpEngine::Impl::Break(const PeerKey& key, const absl::Status& why) {
  Post([this, key, why] {
    if (const auto found = peers_.find(key); found != peers_.end()) Kill(found->second, why);
  });
}

void TcpEngine::Impl::Close(const PeerKey& key) {
  CloseAll([&key](const PeerKey& other) { return other == key; });
}

void TcpEngine::Impl::CloseAll(const std::function<bool(const PeerKey&)>& which) {
  EndAndWait([&] {
    std::vector<std::shared_ptr<Peer>> closed;
    for (const auto& [key, peer] : peers_) {
      if (which(key)) closed.push_back(peer);
    }
    for (const auto& peer : closed) Kill(peer, absl::UnavailableError("the connection was closed here"));
  });
}

void TcpEngine::Impl::Stop() {
  EndAndWait([this] { EndAll(); });
}

std::string TcpEngine::Impl::Transport(const PeerId& id) {
  std::string transport;
  PostAndWait([&] {
    if (peers_.contains(id.key())) transport = absl::StrCat("tcp ", id.address);
  });
  return transport;
}

void TcpEngine::Impl::OnMessage(TcpConnection& connection, MessageKind kind, std::string_view header,
                                const std::shared_ptr<const TcpConnection::Offer>& offer) {
  const std::shared_ptr<Payload> payload =
      offer == nullptr ? nullptr : std::make_shared<Payload>(this, connection.id(), offer);
  const Handler& handler = handlers_[static_cast<size_t>(kind)];
  if (handler) handler({Find(connection.id())->peer->id.key(), header, payload});
}

void TcpEngine::Impl::OnBroken(TcpConnection& connection, const absl::Status& why) {
  Post([this, id = connection.id(), why] {
    if (Channel* const channel = Find(id)) Break(*channel, why);
  });
}

size_t MostStrangers(const TcpOptions& options) {
  return std::min(options.max_strangers, static_cast<size_t>(KeptDescriptors()) / 4);
}

absl::StatusOr<std::unique_ptr<TcpEngine>> TcpEngine::Start(TcpOptions options) {
  options.max_strangers = MostStrangers(options);
  RUNAHEAD_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp({options.host, options.port}));
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "starting the engine");
  return std::make_unique<Impl>(std::move(listener), std::move(epoll), options);
}

}  // namespace runahead
