// Requests that come at times of their own, whether those before them have been answered or not.
//   arrivals ROUTER
// Reads lines `AT_S NEW_TOKENS ID,ID,...`, AT_S rising: seconds from the first request's sending. At the end of its
// input it sends them, and writes what the client saw of each, in order, as one line of JSON:
//   [{"code": "OK", "late_s": 0.0001, "ttft_s": 0.1, "gaps_s": [0.01, ...]}, ...]
// late_s: how long after its time it was sent. ttft_s counts from its time. A gap is between two messages with tokens.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/base/connection.h"
#include "server/rpc/status.h"
#include "tests/bench/must.h"
#include "tests/bench/request_of_ids.h"

namespace runahead {
namespace {

struct Arrival {
  absl::Duration at;
  v1::GenerateRequest request;
};

struct Seen {
  absl::Status status;
  absl::Duration late, ttft;
  std::vector<double> gaps_s;
};

Arrival Read(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() != 3) Must(absl::InvalidArgumentError("a line is AT_S NEW_TOKENS ID,ID,..., not: " + line));
  return {absl::Seconds(Number(words[0])), Must(RequestOfIds(words[2], static_cast<int32_t>(Number(words[1]))))};
}

Seen Ask(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request, absl::Time due) {
  Seen seen{.status = {}, .late = absl::Now() - due, .ttft = absl::InfiniteDuration(), .gaps_s = {}};
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  absl::Time last = absl::InfinitePast();
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (!response.has_tokens()) continue;
    const absl::Time now = absl::Now();
    if (last == absl::InfinitePast()) {
      seen.ttft = now - due;
    } else {
      seen.gaps_s.push_back(absl::ToDoubleSeconds(now - last));
    }
    last = now;
  }
  seen.status = FromGrpcStatus(reader->Finish());
  return seen;
}

std::string Json(const Seen& seen) {
  const bool begun = seen.ttft != absl::InfiniteDuration();
  return absl::StrFormat(
      R"({"code": "%s", "late_s": %.6f, "ttft_s": %s, "gaps_s": [%s]})", absl::StatusCodeToString(seen.status.code()),
      absl::ToDoubleSeconds(seen.late), begun ? absl::StrFormat("%.6f", absl::ToDoubleSeconds(seen.ttft)) : "null",
      absl::StrJoin(seen.gaps_s, ", ", [](std::string* out, double gap) { absl::StrAppendFormat(out, "%.6f", gap); }));
}

void Run(const std::string& router) {
  const auto stub = Must(Connect({router}));
  std::vector<Arrival> arrivals;
  for (std::string line; std::getline(std::cin, line);) arrivals.push_back(Read(line));
  std::vector<Seen> seen(arrivals.size());
  std::vector<std::thread> threads;
  const absl::Time begin = absl::Now();
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const absl::Time due = begin + arrivals[i].at;
    absl::SleepFor(due - absl::Now());
    threads.emplace_back([&, i, due] { seen[i] = Ask(*stub, arrivals[i].request, due); });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("[%s]\n", absl::StrJoin(seen, ", ", [](std::string* out, const Seen& one) {
                          absl::StrAppend(out, Json(one));
                        }).c_str());
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: arrivals ROUTER\n");
    return 2;
  }
  runahead::Run(argv[1]);
}
