// Requests that are sent at the same time, from one process over one channel: what a benchmark measures is the service,
// not the start of its clients.
//   requests ROUTER
// Reads lines `NEW_TOKENS ID,ID,... ID,ID,...`, a prompt a word, and answers each with one line of JSON: the timing of
// each request as the router says it, in order: [{"ttft_s": 0.1, "tpot_s": 0.01}, ...]. Ends with its input.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/base/connection.h"
#include "server/rpc/status.h"
#include "tests/bench/request_of_ids.h"

namespace runahead {
namespace {

// The request's timing, in JSON.
absl::StatusOr<std::string> Ask(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  std::string answer;
  const auto reader = stub.Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (!response.has_finished()) continue;
    const auto& timing = response.finished().timing();
    answer = absl::StrFormat(R"({"ttft_s": %.9f, "tpot_s": %.9f})", timing.ttft_s(), timing.tpot_s());
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  if (!status.ok()) return status;
  return answer;
}

// All prompts of a line at once.
absl::StatusOr<std::string> AskAll(v1::Inference::StubInterface& stub, const std::string& line) {
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  int32_t new_tokens = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &new_tokens)) {
    return absl::InvalidArgumentError("a line is NEW_TOKENS and prompts");
  }
  std::vector<v1::GenerateRequest> requests;
  for (size_t i = 1; i < words.size(); ++i) {
    absl::StatusOr<v1::GenerateRequest> request = RequestOfIds(words[i], new_tokens);
    if (!request.ok()) return request.status();
    requests.push_back(*std::move(request));
  }
  std::vector<absl::StatusOr<std::string>> answers(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { answers[i] = Ask(stub, requests[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> timings;
  for (const absl::StatusOr<std::string>& answer : answers) {
    if (!answer.ok()) return answer.status();
    timings.push_back(*answer);
  }
  return absl::StrCat("[", absl::StrJoin(timings, ", "), "]");
}

int Run(const std::string& router) {
  const auto stub = Connect({router});
  if (!stub.ok()) return NotConnected("requests", stub.status());
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<std::string> answer = AskAll(**stub, line);
    if (!answer.ok()) return Refused("requests", answer.status());
    std::printf("%s\n", answer->c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: requests ROUTER\n");
    return 2;
  }
  return runahead::Run(argv[1]);
}
