// What the HTTP door costs: build/bin/runahead-gateway before a router that answers at once, and the same router called
// over gRPC beside it, by turns. Router and gateway are processes of their own.
//
// `door` runs all of it and prints what it measured; `door PART` one of open, unread, ttft, gone, burst, cpu and many
// alone; `door --smoke` all, with next to nothing of everything, to see that it runs, and that answers wait which
// nobody reads. `door router` is the router, `door static` what HTTP by itself costs.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/monotonic.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/descriptor_limit.h"
#include "server/rpc/channel.h"
#include "server/rpc/lock_graph.h"
#include "tests/bench/door_clients.h"
#include "tests/bench/door_grpc_clients.h"
#include "tests/bench/door_http_clients.h"
#include "tests/bench/door_process.h"
#include "tests/bench/door_router.h"
#include "tests/bench/door_static.h"

namespace runahead {
namespace {

// What is measured, and how much of it.
struct Sizes {
  int alone = 1000;  // requests, one after the other
  int several = 100, rounds_several = 40;
  int gone = 20;           // clients, one after the other
  int beside = 1000;       // requests, one after the other, while others run
  int busy_tokens = 1000;  // of each of `several` streams
  int paced_tokens = 200;  // of these, one each kPaceMs
  int many = 2000, rounds_many = 3, many_tokens = 100;
  int unread = 200, unread_tokens = 10000;
  int unread_long = 20, unread_long_tokens = 100000;
  absl::Duration unread_time = absl::Seconds(60);  // at most, until nothing moves
};
constexpr Sizes kSmoke = {5, 3, 1, 2, 5, 20, 2, 10, 1, 5, 3, 100, 1, 200000, absl::Seconds(60)};
constexpr int kPaceMs = 50;
constexpr int kIdlePaceMs = 600000;
constexpr int kSmallBuffer = 4 << 10;  // of a socket that nobody reads, so that the system takes little

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
    if (wanted("unread")) {
      Unread(sizes_.unread, sizes_.unread_tokens);
      // The windows of gRPC and of the sockets hold the short ones; these must wait at the router.
      if (Unread(sizes_.unread_long, sizes_.unread_long_tokens) >= sizes_.unread_long_tokens) {
        Die("the router has said all of what nobody reads");
      }
    }
    if (part == "open" || part == "unread") return;
    GatewayChild gateway(router_.line());
    HttpClients clients(gateway.port, sizes_.many);
    clients.Run({});  // it has learnt the model
    RunGrpc(*stub_, {});
    if (wanted("ttft")) {
      Ttft(clients, 1, sizes_.alone);
      TtftBeside(clients, gateway.port);
    }
    if (wanted("gone")) Gone(gateway.port);
    if (wanted("burst")) Burst(gateway, clients);
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

  // From when the client of a stream closes its connection until the router hears that the call is cancelled.
  void Gone(int port) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < sizes_.gone; ++i) {
      int64_t closed = 0;
      {
        HttpClients client(port, 1);
        client.Run({.tokens = 2, .pace_ms = kIdlePaceMs, .until_first = true});
        closed = MachineNanoseconds();
      }
      const absl::Time until = MonotonicNow() + absl::Minutes(1);
      int64_t cancelled = 0;
      while ((cancelled = Cancelled()) < closed) {
        if (MonotonicNow() > until) Die("a client is gone, and its call goes on");
        absl::SleepFor(absl::Milliseconds(1));
      }
      times.push_back(absl::Nanoseconds(cancelled - closed));
    }
    absl::PrintF("from a client's close to the cancel at the router: p50 %.2f, longest %.2f ms (of %d)\n",
                 Percentile(times, 0.5), Percentile(times, 1), sizes_.gone);
    std::fflush(stdout);
  }

  static void Print(const std::string& what, const Pair& pair) {
    const double http[2] = {Percentile(pair.http.ttfts, 0.5), Percentile(pair.http.ttfts, 0.99)};
    const double grpc[2] = {Percentile(pair.grpc.ttfts, 0.5), Percentile(pair.grpc.ttfts, 0.99)};
    absl::PrintF("%s: http p50 %.3f p99 %.3f ms, grpc p50 %.3f p99 %.3f ms, added p50 %.3f p99 %.3f ms\n", what,
                 http[0], http[1], grpc[0], grpc[1], http[0] - grpc[0], http[1] - grpc[1]);
    std::fflush(stdout);
  }

  // `several` requests in the same instant, and what they consist of: the same requests over gRPC alone, which the door
  // sends on, and over HTTP alone.
  void Burst(GatewayChild& gateway, HttpClients& clients) {
    Child alone({Beside(""), "static"});
    HttpClients of_alone(std::atoi(alone.line().c_str()), sizes_.several);
    const Wanted wanted = {.streams = sizes_.several};
    Came http, grpc, http_alone;
    const double gateway_before = gateway.child.cpu_seconds(), router_before = router_.cpu_seconds();
    double own_http = 0, own_grpc = 0, own_alone = 0, router_of_grpc = 0;
    for (int i = 0; i < sizes_.rounds_several; ++i) {
      own_http += OwnCpu([&] { http.Add(clients.Run(wanted)); });
      own_alone += OwnCpu([&] { http_alone.Add(of_alone.Run(wanted)); });
      const double before = router_.cpu_seconds();
      own_grpc += OwnCpu([&] { grpc.Add(RunGrpc(*stub_, wanted)); });
      router_of_grpc += router_.cpu_seconds() - before;
    }
    const double requests = static_cast<double>(sizes_.several) * sizes_.rounds_several, us = 1e6 / requests;
    const double router_of_http = router_.cpu_seconds() - router_before - router_of_grpc;
    Print(absl::StrCat("ttft at ", sizes_.several, " at once"), {http, grpc});
    Print("  http by itself", {http_alone, grpc});
    absl::PrintF("  cpu a request, us: http: client %.0f, gateway %.0f, router %.0f; grpc: client %.0f, router %.0f; ",
                 own_http * us, (gateway.child.cpu_seconds() - gateway_before) * us, router_of_http * us, own_grpc * us,
                 router_of_grpc * us);
    absl::PrintF("http by itself: client %.0f, server %.0f\n", own_alone * us, alone.cpu_seconds() * us);
    std::fflush(stdout);
  }

  // Of this process, in seconds.
  template <typename Function>
  static double OwnCpu(Function function) {
    const auto now = [] {
      timespec time = {};
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    };
    const double before = now();
    function();
    return now() - before;
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
        "gateway's cpu a token %.1f us\n",
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

  // How many tokens of each stream the router has said when nothing moves any more.
  int64_t Unread(int streams, int64_t tokens) {
    GatewayChild gateway(router_.line());
    {
      HttpClients first(gateway.port, 1);
      first.Run({});
    }
    const int64_t before = gateway.child.resident_bytes(), said = Said();
    HttpClients clients(gateway.port, streams, kSmallBuffer);
    clients.Ask({.streams = streams, .tokens = static_cast<int>(tokens)});
    const absl::Time until = MonotonicNow() + sizes_.unread_time;
    double spent = 0;  // in the last second
    do {
      const double spent_before = gateway.child.cpu_seconds();
      absl::SleepFor(absl::Seconds(1));
      spent = gateway.child.cpu_seconds() - spent_before;
    } while (spent > 0.01 && MonotonicNow() < until);
    const int64_t said_of_each = (Said() - said) / streams;
    absl::PrintF(
        "%d streams of %d tokens that nobody reads: resident bytes grew by %d a stream; the router has said %d tokens "
        "of each; the gateway's cpu in the last second %.2f s\n",
        streams, tokens, (gateway.child.resident_bytes() - before) / streams, said_of_each, spent);
    std::fflush(stdout);
    return said_of_each;
  }

  int64_t Said() { return OfRouter().kv_bytes_per_token(); }

  // When a call was last cancelled.
  int64_t Cancelled() {
    int64_t nanoseconds = 0;
    if (!absl::SimpleAtoi(OfRouter().fingerprint(), &nanoseconds)) Die("the router says no time");
    return nanoseconds;
  }

  v1::Model OfRouter() {
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    if (!stub_->ListModels(&context, {}, &response).ok()) Die("the router does not answer");
    return response.models(0);
  }

  const Sizes sizes_;
  Child router_;
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  const std::string word = argc == 2 ? argv[1] : "";
  const std::vector<std::string> words = {"",     "--smoke", "router", "static", "open", "unread",
                                          "ttft", "gone",    "burst",  "cpu",    "many"};
  if (argc > 2 || std::find(words.begin(), words.end(), word) == words.end()) {
    std::fprintf(
        stderr,
        "usage: door [--smoke | open | unread | ttft | gone | burst | cpu | many] | door router | door static\n");
    return 2;
  }
  if (word == "router") return runahead::Router();
  if (word == "static") return runahead::StaticServer();
  runahead::RaiseDescriptorLimit();
  runahead::KeepNoLockGraph();
  const bool smoke = word == "--smoke";
  runahead::Bench(smoke ? runahead::kSmoke : runahead::Sizes()).Run(smoke ? "" : word);
  return 0;
}
