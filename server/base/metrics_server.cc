#include "server/base/metrics_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/accepter.h"
#include "server/base/address.h"
#include "server/base/descriptor_limit.h"
#include "server/base/http_answers.h"
#include "server/base/http_connection.h"
#include "server/base/listening_sockets.h"
#include "server/base/logging.h"

namespace runahead {
namespace {

// Connections at once: some scrapers and probes, each for a moment. One address may have half of them. Half of either
// may wait for a text that is being made, and only they do not give way to who comes.
constexpr size_t kMaxConnections = 64;
constexpr char kTooManyScrapes[] =
    "HTTP/1.1 503 Too many scrapes at once\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Accepted before those that are here have their turn.
constexpr int kBatch = 64;

// Answers one request after the other on a thread of its own: what is slow to say keeps no probe waiting.
class AnswerThread {
 public:
  struct Item {
    uint64_t connection;
    std::string text;  // the request, later the answer
  };

  // `wake` is written to when an answer is there.
  AnswerThread(const HttpAnswers& answers, const Descriptor& wake)
      : answers_(answers), wake_(wake), thread_([this] { Run(); }) {}
  ~AnswerThread() {
    {
      MutexLock lock(mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  void Ask(Item request) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    asked_.push_back(std::move(request));
    changed_.NotifyAll();
  }

  std::vector<Item> TakeAnswers() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return std::exchange(answered_, {});
  }

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_) {
    NameThread("scrapes");
    while (std::optional<Item> item = Next()) {
      item->text = answers_.Answer(item->text);
      MutexLock lock(mu_);
      answered_.push_back(*std::move(item));
      eventfd_write(wake_.get(), 1);
    }
  }

  std::optional<Item> Next() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (asked_.empty() && !ending_) changed_.Wait(mu_);
    if (ending_) return std::nullopt;
    Item item = std::move(asked_.front());
    asked_.pop_front();
    return item;
  }

  const HttpAnswers& answers_;
  const Descriptor& wake_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Item> asked_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Item> answered_ RUNAHEAD_GUARDED_BY(mu_);
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

bool AsksForHealth(const std::string& request) {
  const absl::string_view method = absl::StartsWith(request, "HEAD ") ? "HEAD " : "GET ";
  const absl::string_view path = absl::StripPrefix(request, method);
  return path.size() < request.size() && (absl::StartsWith(path, "/healthz ") || absl::StartsWith(path, "/readyz "));
}

HttpText HealthText(const absl::Status& status) {
  if (status.ok()) return {.body = "ok\n"};
  return {.status = 503, .body = absl::StrCat(status.message(), "\n")};
}

}  // namespace

// One thread waits for all connections; nothing in it blocks.
class MetricsServer::Loop {
 public:
  Loop(ListeningSockets sockets, const MetricRegistry& registry, const MetricsServerOptions& options)
      : sockets_(std::move(sockets)),
        options_(options),
        most_(std::min(kMaxConnections, static_cast<size_t>(KeptDescriptors()) / 4)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    answers_.Get("/metrics", [&registry] {
      return HttpText{.body = registry.Serialize(), .type = "text/plain; version=0.0.4; charset=utf-8"};
    });
    answers_.Get("/healthz", [this] { return HealthText(options_.health ? options_.health() : absl::OkStatus()); });
    answers_.Get("/readyz", [this] { return HealthText(options_.ready ? options_.ready() : absl::OkStatus()); });
    if (options_.connections != nullptr) options_.connections->limit.Set(static_cast<double>(most_));
    scrapes_.emplace(answers_, wake_);
    thread_ = std::thread([this] { Run(); });
  }

  ~Loop() {
    {
      MutexLock lock(mu_);
      ending_ = true;
    }
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

 private:
  using State = HttpConnection::State;

  void Run() RUNAHEAD_EXCLUDES(mu_) {
    NameThread("metrics");
    for (;;) {
      Wait();
      {
        MutexLock lock(mu_);
        if (ending_) return;
      }
      for (AnswerThread::Item& item : scrapes_->TakeAnswers()) Send(item.connection, std::move(item.text));
      for (HttpConnection& connection : connections_) Advance(connection);
      RemoveEnded();
      paused_ = false;
      for (Descriptor& listener : sockets_.sockets) AcceptAll(listener);
      if (options_.connections != nullptr) options_.connections->open.Set(static_cast<double>(connections_.size()));
    }
  }

  void Wait() {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    absl::Time until = paused_ ? MonotonicNow() + kAcceptPause : absl::InfiniteFuture();
    for (const Descriptor& listener : sockets_.sockets) {
      if (!paused_) polled.push_back({listener.get(), POLLIN, 0});  // one that has ended is -1, which poll skips
    }
    for (const HttpConnection& connection : connections_) {
      if (connection.events() != 0) polled.push_back({connection.socket(), connection.events(), 0});
      until = std::min(until, connection.until());
    }
    int millis = -1;
    if (until != absl::InfiniteFuture()) {
      millis = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(until - MonotonicNow()) + 1));
    }
    poll(polled.data(), polled.size(), millis);
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
  }

  void Advance(HttpConnection& connection) {
    if (connection.state() == State::kReading) {
      connection.Read();
      if (connection.state() == State::kAsked) Answer(connection);
    } else if (connection.state() == State::kAnswering) {
      connection.Write();
    }
  }

  void Answer(HttpConnection& connection) {
    if (AsksForHealth(connection.request())) {
      connection.Answer(answers_.Answer(connection.request()), MonotonicNow() + kHttpAnswerTime);
    } else if (const std::optional<ConnectionRefusal> why = WhyNoScrape(connection)) {
      CountRefused(*why);
      connection.Answer(kTooManyScrapes, MonotonicNow() + kHttpAnswerTime);
    } else {
      scrapes_->Ask({connection.id(), connection.request()});
    }
  }

  // Why the text that a connection has just asked for is not made: too many wait for theirs. nullopt: it is made.
  std::optional<ConnectionRefusal> WhyNoScrape(const HttpConnection& asker) const {
    size_t all = 0, of_host = 0;
    for (const HttpConnection& each : connections_) {
      if (each.state() != State::kAsked) continue;
      ++all;
      if (each.host() == asker.host()) ++of_host;
    }
    if (of_host > most_ / 4) return ConnectionRefusal::kAddress;
    return all > most_ / 2 ? std::optional(ConnectionRefusal::kLimit) : std::nullopt;
  }

  void Send(uint64_t id, std::string answer) {
    const auto found = std::find_if(connections_.begin(), connections_.end(),
                                    [id](const HttpConnection& each) { return each.id() == id; });
    if (found != connections_.end()) found->Answer(std::move(answer), MonotonicNow() + kHttpAnswerTime);
  }

  void RemoveEnded() {
    const absl::Time now = MonotonicNow();
    connections_.remove_if(
        [now](const HttpConnection& each) { return each.state() == State::kEnded || each.until() <= now; });
  }

  void AcceptAll(Descriptor& listener) {
    for (int i = 0; i < kBatch && listener.valid(); ++i) {
      absl::StatusOr<std::optional<NewConnection>> next = accepter_.Next(listener);
      // Whoever has the last descriptor may give it to the next one.
      if (absl::IsResourceExhausted(next.status()) && GiveWay(ConnectionRefusal::kDescriptors, nullptr)) continue;
      if (absl::IsResourceExhausted(next.status())) {
        paused_ = true;
        return;
      }
      if (!next.ok()) {
        LogError("metrics", FormatHostPort(sockets_.address),
                 ": nobody can connect any more: ", next.status().message());
        listener.Close();
        return;
      }
      if (!next->has_value()) return;
      Admit(**std::move(next));
    }
  }

  void Admit(NewConnection connection) {
    const std::string host = PeerHost(connection.peer);
    const bool last = IsAmongTheLast(connection.socket.get(), KeptDescriptors() / 4);
    const auto of_host = static_cast<size_t>(std::count_if(
        connections_.begin(), connections_.end(), [&](const HttpConnection& each) { return each.host() == host; }));
    if (of_host >= most_ / 2) GiveWay(ConnectionRefusal::kAddress, &host);
    if (connections_.size() >= most_) GiveWay(ConnectionRefusal::kLimit, nullptr);
    if (last) GiveWay(ConnectionRefusal::kDescriptors, nullptr);
    HttpConnection& admitted =
        connections_.emplace_back(next_id_++, std::move(connection.socket), host, MonotonicNow() + kHttpRequestTime);
    Advance(admitted);
    // A request that came with its connection has its answer already, and takes nobody's place.
    if (admitted.state() == State::kEnded) connections_.pop_back();
  }

  // Ends the oldest connection, of `host` where one is given, that does not wait for a text that is being made. A
  // request that is here is looked at before. False where there is none.
  bool GiveWay(ConnectionRefusal why, const std::string* host) {
    for (auto each = connections_.begin(); each != connections_.end(); ++each) {
      if (host != nullptr && each->host() != *host) continue;
      Advance(*each);
      if (each->state() == State::kAsked) continue;
      if (each->state() != State::kEnded) CountRefused(why);
      connections_.erase(each);
      return true;
    }
    return false;
  }

  void CountRefused(ConnectionRefusal why) {
    if (options_.connections != nullptr) options_.connections->refused(why).Increment();
  }

  ListeningSockets sockets_;
  const MetricsServerOptions options_;
  const size_t most_;  // connections
  const Descriptor wake_;
  HttpAnswers answers_;
  std::optional<AnswerThread> scrapes_;
  Mutex mu_;
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;

  // The thread's own:
  Accepter accepter_;
  std::list<HttpConnection> connections_;  // the oldest first
  uint64_t next_id_ = 0;
  bool paused_ = false;  // not even the spare descriptor was left

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                                    const MetricRegistry& registry,
                                                                    const MetricsServerOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen));
  RUNAHEAD_ASSIGN_OR_RETURN(ListeningSockets sockets, ListenOn("metrics_listen", address));
  address = sockets.address;
  auto loop = std::make_unique<Loop>(std::move(sockets), registry, options);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(loop), FormatHostPort(address)));
}

MetricsServer::MetricsServer(std::unique_ptr<Loop> loop, std::string address)
    : loop_(std::move(loop)), address_(std::move(address)) {}

MetricsServer::~MetricsServer() = default;

}  // namespace runahead
