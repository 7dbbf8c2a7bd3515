// What the HTTP door costs: build/bin/runahead-gateway before a router that answers at once, and the same router called
// over gRPC beside it, by turns. Router and gateway are processes of their own.
//
// `door` runs all of it and prints what it measured; `door PART` one of open, unread, ttft, cpu and many alone; `door
// --smoke` all, with next to nothing of everything, to see that it runs. `door router` is the router: an answer is
// `started`, max_tokens messages of one token, as fast as the call takes them, and `finished`; where a request has a
// seed, the next token comes so many milliseconds after the one before was written.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/descriptor_limit.h"
#include "server/rpc/channel.h"

namespace runahead {
namespace {

constexpr char kText[] = " word";

// What is measured, and how much of it.
struct Sizes {
  int alone = 1000;  // requests, one after the other
  int several = 100, rounds_several = 40;
  int beside = 1000;       // requests, one after the other, while others run
  int busy_tokens = 1000;  // of each of `several` streams
  int paced_tokens = 200;  // of these, one each kPaceMs
  int many = 2000, rounds_many = 3, many_tokens = 100;
  int unread = 200, unread_tokens = 10000;
  absl::Duration unread_time = absl::Seconds(60);  // at most, until nothing moves
};
constexpr Sizes kSmoke = {5, 3, 1, 5, 20, 2, 10, 1, 5, 3, 100, absl::ZeroDuration()};
constexpr int kPaceMs = 50;
constexpr int kProbeTokens = 4;  // of requests whose first token is what counts
constexpr int kIdlePaceMs = 600000;
constexpr int kSmallBuffer = 4 << 10;  // of a socket that nobody reads, so that the system takes little

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "door: %s\n", why.c_str());
  std::exit(1);
}

// ---- the router

class Answer final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  Answer(const v1::GenerateRequest& request, std::atomic<int64_t>& said)
      : tokens_(request.stop().max_tokens()), pace_ms_(static_cast<int>(request.sampling().seed())), said_(said) {
    response_.mutable_started()->set_request_id(request.request_id());
    response_.mutable_started()->set_prompt_tokens(8);
    StartWrite(&response_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok || done_) return Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
    if (pace_ms_ == 0 || index_ == 0) return Say();
    alarm_.Set(std::chrono::system_clock::now() + std::chrono::milliseconds(pace_ms_), [this](bool rang) {
      if (rang) return Say();
      Finish(grpc::Status::CANCELLED);
    });
  }
  void OnCancel() override { alarm_.Cancel(); }
  void OnDone() override { delete this; }

  void Say() {
    if (index_ == tokens_) {
      v1::Finished& finished = *response_.mutable_finished();
      finished.set_reason(v1::FINISH_REASON_LENGTH);
      finished.mutable_usage()->set_prompt_tokens(8);
      finished.mutable_usage()->set_completion_tokens(tokens_);
      done_ = true;
    } else {
      v1::Tokens& tokens = *response_.mutable_tokens();
      tokens.Clear();
      tokens.set_index(index_++);
      tokens.add_ids(100);
      tokens.set_text(kText);
      ++said_;
    }
    StartWrite(&response_);
  }

  const int tokens_, pace_ms_;
  std::atomic<int64_t>& said_;
  int index_ = 0;
  bool done_ = false;
  v1::GenerateResponse response_;
  grpc::Alarm alarm_;
};

class InstantRouter final : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest* request) override {
    return new Answer(*request, said_);
  }
  // kv_bytes_per_token is how many tokens it has said.
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    v1::Model& model = *response->add_models();
    model.set_name("instant");
    model.set_context_length(1 << 20);
    model.set_kv_bytes_per_token(said_);
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  std::atomic<int64_t> said_ = 0;
};

int Router() {
  RaiseDescriptorLimit();
  InstantRouter service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();  // until killed
  return 0;
}

// ---- processes

// A program that says a line when it serves, on descriptor kSaysOn; ends with us.
class Child {
 public:
  static constexpr int kSaysOn = 1;

  explicit Child(std::vector<std::string> words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) Die("no pipe");
    std::vector<char*> args;
    for (std::string& word : words) args.push_back(word.data());
    args.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(ends[1], kSaysOn);
      execv(args[0], args.data());
      _exit(127);
    }
    close(ends[1]);
    char byte;
    while (read(ends[0], &byte, 1) == 1 && byte != '\n') line_ += byte;
    close(ends[0]);
    if (line_.empty()) Die(absl::StrCat(words[0], " did not start"));
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& line() const { return line_; }
  double cpu_seconds() const {
    const std::string stat = Proc("stat");
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
    double user = 0, system = 0;
    if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) || !absl::SimpleAtod(fields[12], &system)) {
      Die("a process has ended");
    }
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  int64_t resident_bytes() const {
    const std::vector<std::string> fields = absl::StrSplit(Proc("statm"), ' ');
    int64_t pages = 0;
    if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &pages)) Die("a process has ended");
    return pages * sysconf(_SC_PAGESIZE);
  }

 private:
  std::string Proc(const char* name) const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/", name));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  pid_t pid_ = -1;
  std::string line_;
};

std::string Beside(const std::string& path) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof self);
  if (size <= 0) Die("where am I?");
  const std::string us(self, static_cast<size_t>(size));
  return path.empty() ? us : absl::StrCat(us.substr(0, us.rfind('/')), "/", path);
}

class GatewayChild {
 public:
  explicit GatewayChild(const std::string& router)
      : child({Beside("../bin/runahead-gateway"), "--listen", "127.0.0.1:0", "--router", router, "--log-level", "error",
               "--ready-fd", absl::StrCat(Child::kSaysOn)}) {
    const std::string& line = child.line();  // {"address":"127.0.0.1:1234",..
    const size_t at = line.find(':', line.find("127.0.0.1"));
    if (at == std::string::npos || (port = std::atoi(line.c_str() + at + 1)) == 0) Die(line);
  }

  Child child;
  int port = 0;
};

// ---- what clients ask for, and what came

struct Wanted {
  int streams = 1;
  int tokens = kProbeTokens;
  int pace_ms = 0;
  bool until_first = false;  // it is enough that each has its first token; the streams stay open
};

struct Came {
  int64_t tokens = 0;
  absl::Duration took;
  std::vector<absl::Duration> ttfts;

  double rate() const { return static_cast<double>(tokens) / absl::ToDoubleSeconds(took); }
  void Add(const Came& more) {
    tokens += more.tokens;
    took += more.took;
    ttfts.insert(ttfts.end(), more.ttfts.begin(), more.ttfts.end());
  }
};

double Percentile(std::vector<absl::Duration> times, double share) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return absl::ToDoubleMilliseconds(times[static_cast<size_t>(static_cast<double>(times.size() - 1) * share)]);
}

// ---- clients over HTTP: one thread, which waits for all of them

class HttpClients {
 public:
  // `receive_buffer`: of the sockets, in bytes; 0: the system's own.
  HttpClients(int port, int most, int receive_buffer = 0) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < most; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (receive_buffer > 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
      if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("cannot connect");
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      fcntl(fd, F_SETFL, O_NONBLOCK);
      epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
      clients_.push_back({.fd = fd});
    }
  }
  ~HttpClients() {
    for (const Client& client : clients_) close(client.fd);
    close(epoll_);
  }
  HttpClients(const HttpClients&) = delete;
  HttpClients& operator=(const HttpClients&) = delete;

  void Ask(const Wanted& wanted) {
    const std::string seed = wanted.pace_ms > 0 ? absl::StrCat(",\"seed\":", wanted.pace_ms) : "";
    const std::string body = absl::StrCat("{\"messages\":[{\"role\":\"user\",\"content\":\"Say something.\"}],",
                                          "\"stream\":true,\"max_tokens\":", wanted.tokens, seed, "}");
    const std::string request =
        absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n",
                     "Content-Length: ", body.size(), "\r\n\r\n", body);
    for (int i = 0; i < wanted.streams; ++i) {
      Client& client = clients_[static_cast<size_t>(i)];
      client.began = MonotonicNow();
      client.spoke = client.done = false;
      if (send(client.fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
        Die("cannot send a request");
      }
    }
  }

  Came Run(const Wanted& wanted) {
    Came came;
    came_ = &came;
    const absl::Time began = MonotonicNow();
    Ask(wanted);
    int left = wanted.streams;
    while (left > 0) {
      epoll_event events[256];
      const int count = epoll_wait(epoll_, events, 256, 60000);
      if (count == 0) Die("nothing came for a minute");
      for (int i = 0; i < count; ++i) {
        Client& client = clients_[events[i].data.u32];
        const bool had = wanted.until_first ? client.spoke : client.done;
        Read(client);
        if (!had && (wanted.until_first ? client.spoke : client.done)) --left;
      }
    }
    came.took = MonotonicNow() - began;
    return came;
  }

 private:
  struct Client {
    int fd = -1;
    absl::Time began = {};
    bool spoke = false, done = false;
    std::string line = {};  // that has not ended
  };

  void Read(Client& client) {
    const ssize_t size = recv(client.fd, buffer_, sizeof buffer_, 0);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) Die("a connection was closed");
    absl::string_view text(buffer_, static_cast<size_t>(size));
    while (true) {
      const size_t end = text.find('\n');
      if (end == text.npos) break;
      const absl::string_view rest = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (client.line.empty()) {
        Line(client, rest);
      } else {
        client.line.append(rest.data(), rest.size());
        Line(client, client.line);
        client.line.clear();
      }
    }
    client.line.append(text.data(), text.size());
  }

  void Line(Client& client, absl::string_view line) {
    if (line == "0\r") {
      client.done = true;
    } else if (line.find("\"delta\":{\"content\":\"") != line.npos) {
      ++came_->tokens;
      if (!client.spoke) came_->ttfts.push_back(MonotonicNow() - client.began);
      client.spoke = true;
    } else if (line.find("\"error\":") != line.npos) {
      Die(std::string(line));
    }
  }

  const int epoll_;
  std::vector<Client> clients_;
  Came* came_ = nullptr;
  char buffer_[64 << 10];
};

// ---- clients over gRPC, on one connection, as the gateway's calls are

struct Sums {
  Mutex mu;
  CondVar changed;
  int left RUNAHEAD_GUARDED_BY(mu) = 0;
  std::vector<absl::Duration> ttfts RUNAHEAD_GUARDED_BY(mu);
  std::atomic<int64_t> tokens = 0;
};

class GrpcCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  GrpcCall(v1::Inference::StubInterface& stub, const Wanted& wanted, Sums& sums) : sums_(sums), began_(MonotonicNow()) {
    v1::ChatMessage& message = *request_.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("Say something.");
    request_.mutable_stop()->set_max_tokens(wanted.tokens);
    if (wanted.pace_ms > 0) request_.mutable_sampling()->set_seed(static_cast<uint64_t>(wanted.pace_ms));
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_tokens()) {
      ++sums_.tokens;
      if (!spoke_) {
        spoke_ = true;
        const absl::Duration ttft = MonotonicNow() - began_;
        MutexLock lock(sums_.mu);
        sums_.ttfts.push_back(ttft);
      }
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Die(status.error_message());
    MutexLock lock(sums_.mu);
    if (--sums_.left == 0) sums_.changed.NotifyAll();
  }

  Sums& sums_;
  const absl::Time began_;
  bool spoke_ = false;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
};

Came RunGrpc(v1::Inference::StubInterface& stub, const Wanted& wanted) {
  Sums sums;
  std::vector<std::unique_ptr<GrpcCall>> calls;
  const absl::Time began = MonotonicNow();
  {
    MutexLock lock(sums.mu);
    sums.left = wanted.streams;
  }
  for (int i = 0; i < wanted.streams; ++i) calls.push_back(std::make_unique<GrpcCall>(stub, wanted, sums));
  MutexLock lock(sums.mu);
  while (sums.left > 0) sums.changed.Wait(sums.mu);
  return {sums.tokens, MonotonicNow() - began, sums.ttfts};
}

// ---- what is measured

struct Pair {
  Came http, grpc;
};

class Bench {
 public:
  explicit Bench(const Sizes& sizes) : sizes_(sizes), router_({Beside(""), "router"}) {
    stub_ = v1::Inference::NewStub(MakeChannel(router_.line()));
  }

  // `part`: empty for all.
  void Run(const std::string& part) {
    const auto wanted = [&part](const char* name) { return part.empty() || part == name; };
    if (wanted("open")) Open();
    if (wanted("unread")) Unread();
    if (part == "open" || part == "unread") return;
    GatewayChild gateway(router_.line());
    HttpClients clients(gateway.port, sizes_.many);
    clients.Run({});  // it has learnt the model
    RunGrpc(*stub_, {});
    if (wanted("ttft")) {
      Ttft(clients, 1, sizes_.alone);
      Ttft(clients, sizes_.several, sizes_.rounds_several);
      TtftBeside(clients, gateway.port);
    }
    if (wanted("cpu")) {
      Cpu(gateway, clients, "at full speed", {.streams = sizes_.several, .tokens = sizes_.busy_tokens});
      Cpu(gateway, clients, "paced", {.streams = sizes_.several, .tokens = sizes_.paced_tokens, .pace_ms = kPaceMs});
    }
    if (wanted("many")) Many(gateway, clients);
  }

 private:
  Pair Turns(HttpClients& clients, const Wanted& wanted, int rounds) {
    Pair pair;
    for (int i = 0; i < rounds; ++i) {
      pair.http.Add(clients.Run(wanted));
      pair.grpc.Add(RunGrpc(*stub_, wanted));
    }
    return pair;
  }

  void Ttft(HttpClients& clients, int streams, int rounds) {
    const Pair pair = Turns(clients, {.streams = streams}, rounds);
    Print(absl::StrCat("ttft at ", streams, " at once"), pair);
  }

  // One request at a time, beside `several` streams that are paced.
  void TtftBeside(HttpClients& clients, int port) {
    const Wanted beside = {.streams = sizes_.several, .tokens = sizes_.paced_tokens, .pace_ms = kPaceMs};
    HttpClients probe(port, 1);
    Pair pair;
    std::thread http([&] { clients.Run(beside); });
    absl::SleepFor(absl::Milliseconds(500));
    for (int i = 0; i < sizes_.beside; ++i) pair.http.Add(probe.Run({}));
    http.join();
    std::thread grpc([&] { RunGrpc(*stub_, beside); });
    absl::SleepFor(absl::Milliseconds(500));
    for (int i = 0; i < sizes_.beside; ++i) pair.grpc.Add(RunGrpc(*stub_, {}));
    grpc.join();
    Print(absl::StrCat("ttft of one beside ", sizes_.several, " paced"), pair);
  }

  static void Print(const std::string& what, const Pair& pair) {
    const double http[2] = {Percentile(pair.http.ttfts, 0.5), Percentile(pair.http.ttfts, 0.99)};
    const double grpc[2] = {Percentile(pair.grpc.ttfts, 0.5), Percentile(pair.grpc.ttfts, 0.99)};
    absl::PrintF("%s: http p50 %.3f p99 %.3f ms, grpc p50 %.3f p99 %.3f ms, added p50 %.3f p99 %.3f ms\n", what,
                 http[0], http[1], grpc[0], grpc[1], http[0] - grpc[0], http[1] - grpc[1]);
    std::fflush(stdout);
  }

  void Cpu(GatewayChild& gateway, HttpClients& clients, const char* how, const Wanted& wanted) {
    const double before = gateway.child.cpu_seconds();
    const Came came = clients.Run(wanted);
    const double spent = gateway.child.cpu_seconds() - before;
    absl::PrintF("gateway's cpu a token, %d streams %s: %.1f us (%d tokens, %.0f a second)\n", wanted.streams, how,
                 spent / static_cast<double>(came.tokens) * 1e6, came.tokens, came.rate());
    std::fflush(stdout);
  }

  void Many(GatewayChild& gateway, HttpClients& clients) {
    const Wanted wanted = {.streams = sizes_.many, .tokens = sizes_.many_tokens};
    Pair pair;
    double spent = 0;
    for (int i = 0; i < sizes_.rounds_many; ++i) {
      const double before = gateway.child.cpu_seconds();
      pair.http.Add(clients.Run(wanted));
      spent += gateway.child.cpu_seconds() - before;
      pair.grpc.Add(RunGrpc(*stub_, wanted));
    }
    const double http = Percentile(pair.http.ttfts, 0.5), grpc = Percentile(pair.grpc.ttfts, 0.5);
    absl::PrintF(
        "%d at once: http %.0f tokens/s, grpc %.0f, ratio %.2f; ttft p50 http %.0f ms, grpc %.0f, ratio %.2f; "
        "gateway's "
        "cpu a token %.1f us\n",
        wanted.streams, pair.http.rate(), pair.grpc.rate(), pair.http.rate() / pair.grpc.rate(), http, grpc,
        http / grpc, spent / static_cast<double>(pair.http.tokens) * 1e6);
    std::fflush(stdout);
  }

  void Open() {
    GatewayChild gateway(router_.line());
    {
      HttpClients first(gateway.port, 1);
      first.Run({});
    }
    const int64_t before = gateway.child.resident_bytes();
    HttpClients clients(gateway.port, sizes_.many);
    absl::SleepFor(absl::Milliseconds(200));
    const int64_t connected = gateway.child.resident_bytes();
    clients.Run({.streams = sizes_.many, .tokens = 2, .pace_ms = kIdlePaceMs, .until_first = true});
    const int64_t open = gateway.child.resident_bytes();
    absl::PrintF("gateway's resident bytes: %d at first, a connection %d, an open stream with it %d (of %d)\n", before,
                 (connected - before) / sizes_.many, (open - before) / sizes_.many, sizes_.many);
    std::fflush(stdout);
  }

  void Unread() {
    GatewayChild gateway(router_.line());
    {
      HttpClients first(gateway.port, 1);
      first.Run({});
    }
    const int64_t before = gateway.child.resident_bytes(), said = Said();
    HttpClients clients(gateway.port, sizes_.unread, kSmallBuffer);
    clients.Ask({.streams = sizes_.unread, .tokens = sizes_.unread_tokens});
    const absl::Time until = MonotonicNow() + sizes_.unread_time;
    double spent = 0;  // in the last second
    do {
      const double spent_before = gateway.child.cpu_seconds();
      absl::SleepFor(absl::Seconds(1));
      spent = gateway.child.cpu_seconds() - spent_before;
    } while (spent > 0.01 && MonotonicNow() < until);
    absl::PrintF(
        "%d streams of %d tokens that nobody reads: resident bytes grew by %d a stream; the router has said %d tokens "
        "of "
        "each; the gateway's cpu in the last second %.2f s\n",
        sizes_.unread, sizes_.unread_tokens, (gateway.child.resident_bytes() - before) / sizes_.unread,
        (Said() - said) / sizes_.unread, spent);
    std::fflush(stdout);
  }

  int64_t Said() {
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    if (!stub_->ListModels(&context, {}, &response).ok()) Die("the router does not answer");
    return response.models(0).kv_bytes_per_token();
  }

  const Sizes sizes_;
  Child router_;
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  const std::string word = argc == 2 ? argv[1] : "";
  const std::vector<std::string> words = {"", "--smoke", "router", "open", "unread", "ttft", "cpu", "many"};
  if (argc > 2 || std::find(words.begin(), words.end(), word) == words.end()) {
    std::fprintf(stderr, "usage: door [--smoke | open | unread | ttft | cpu | many] | door router\n");
    return 2;
  }
  if (word == "router") return runahead::Router();
  runahead::RaiseDescriptorLimit();
  const bool smoke = word == "--smoke";
  runahead::Bench(smoke ? runahead::kSmoke : runahead::Sizes()).Run(smoke ? "" : word);
  return 0;
}
