#include "tests/integration/hung_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_join.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/frozen_thread.h"

namespace runahead {
namespace {

struct Harmless {
  std::string_view thread, why;
};

// Nobody waits for ever when one of these stands still.
constexpr Harmless kHarmless[] = {
    // Routers and workers.
    {"runahead-router", "main: plans and answers are made on others; ejections end later, KV tables are read later"},
    {"runahead-worker", "main: it waits for the end"},
    {"signals", "the process is ended by SIGKILL then, as whoever sends SIGTERM does after a time"},
    {"log", "lines wait in memory, and beyond a bound are dropped and counted"},
    {"port", "nobody connects anew: the process's own probe says so on /healthz and ends it (crowd_test)"},
    {"probe", "a deaf port goes unnoticed, and nothing else"},
    {"metrics", "/healthz does not answer: whoever watches liveness ends the process"},
    {"scrapes", "/metrics does not answer, and a scraper says so"},
    {"arrivals", "a message that trickles in goes on, until its call's deadline"},
    // gRPC's own. Its callbacks run on whichever of several is free. Where none is, no ping is answered: the process is
    // silent (pause_test).
    {"default-executo", "gRPC's"},
    {"event_engine", "gRPC's"},
    {"grpc_global_tim", "gRPC's"},
    {"nexting_thread", "gRPC's"},
    {"resolver-execut", "gRPC's"},
    {"timer_manager", "gRPC's"},
    // Routers.
    {"session", "one of several: what it runs stands still until its client's deadline, the others run the rest"},
    {"session work", "likewise: a text or a plan"},
    {"alarms", "who waits until a moment waits for longer; who is told goes on, and clients' deadlines cancel"},
    {"connection", "one worker's: it is judged silent later, or never while it answers calls"},
    {"departures", "a client that leaves its answer unread keeps its place for longer"},
    {"engine", "a gateway that leaves its answers unread keeps its place; one that asks for the tokenizer first waits"},
    {"archive", "a gateway that asks for the tokenizer waits for it; nobody else does"},
    {"lookup", "traces wait for the collector's address, as for the collector"},
    {"otlp", "traces wait until there is no more room, and are dropped and counted"},
    {"names", "workers that come are not known until it goes on"},
    // Workers.
    {"pool",
     "whoever waits for a part of an op does all parts that nobody has begun; one that was begun is its layer's"},
    {"grammars", "one of two: the form that it compiles is waited for until clients' deadlines; others go on"},
    {"masks", "answers with a form stand still, until their clients' deadlines; others go on"},
    {"long masks", "likewise, those whose form is costly"},
    {"silence", "a router that is gone without a word is noticed by its TCP connection's end"},
    {"lease expiry", "a lease that nobody uses stays"},
    {"stalls", "a stream that the router does not read stays"},
    {"pacing", "with chain_link_gbps only, which imitates a slow network: frames are late, as on one that is cut"},
};

bool IsKnown(std::string_view thread) {
  const auto is_it = [thread](const auto& kind) { return kind == thread; };
  const auto carries = [thread](const FrozenOf& kind) { return kind.thread == thread; };
  return std::ranges::any_of(kFrozenInPrefill, is_it) || std::ranges::any_of(kFrozenInDecode, is_it) ||
         std::ranges::any_of(kFrozenInKvpr, is_it) || std::ranges::any_of(kFrozenInBoth, is_it) ||
         std::ranges::any_of(kFrozenInPrefix, is_it) || std::ranges::any_of(kFrozenInHandoff, carries) ||
         std::ranges::any_of(kFrozenInChain, carries) ||
         std::ranges::any_of(kHarmless, [thread](const Harmless& kind) { return kind.thread == thread; });
}

}  // namespace

void ExpectKnownThreads(pid_t pid) {
  std::set<std::string> unknown;
  // One that has just begun has its parent's name, for a moment.
  EXPECT_TRUE(Eventually([&] {
    unknown.clear();
    for (const auto& [tid, name] : testing::ThreadsOf(pid)) {
      if (!IsKnown(name)) unknown.insert(name);
    }
    return unknown.empty();
  })) << "freeze them in hung_test, or say in hung_threads.cc why they may stand still: "
      << absl::StrJoin(unknown, ", ");
}

}  // namespace runahead
