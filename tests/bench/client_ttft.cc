// What a client waits for its first token less what the router says that it took, request by request, over one channel
// that is warm: the way there and back, and the reading. tests/bench/client starts a cluster and runs it.
//
// usage: client_ttft ROUTER TOKENS REPEATS
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "client/base/connection.h"
#include "kernels/base/monotonic.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr int kWarmUp = 3;                // requests that are not counted
constexpr int kFirst = 100, kLast = 300;  // ids of ordinary tokens in every model that benchmarks use

struct Times {
  double client_s = 0, router_s = 0;
};

// Greedy, of two tokens, so that there is a lease as there usually is.
v1::GenerateRequest Request(int tokens, std::mt19937& random) {
  v1::GenerateRequest request;
  std::uniform_int_distribution<int> ids(kFirst, kLast);
  for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(ids(random));
  request.mutable_stop()->set_max_tokens(2);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

absl::StatusOr<Times> Ask(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  Times times;
  const absl::Time begin = MonotonicNow();
  const auto reader = stub.Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (response.has_tokens() && times.client_s == 0) times.client_s = absl::ToDoubleSeconds(MonotonicNow() - begin);
    if (response.has_finished()) times.router_s = response.finished().timing().ttft_s();
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  if (!status.ok()) return status;
  return times;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const std::string& router, int tokens, int repeats) {
  const auto stub = Connect({router});
  if (!stub.ok()) return NotConnected("client_ttft", stub.status());
  std::mt19937 random(1);
  std::vector<double> client_ms, router_ms, difference_ms;
  for (int i = 0; i < kWarmUp + repeats; ++i) {
    const absl::StatusOr<Times> times = Ask(**stub, Request(tokens, random));
    if (!times.ok()) return Refused("client_ttft", times.status());
    if (i < kWarmUp) continue;
    client_ms.push_back(1e3 * times->client_s);
    router_ms.push_back(1e3 * times->router_s);
    difference_ms.push_back(client_ms.back() - router_ms.back());
  }
  const auto [least, most] = std::minmax_element(difference_ms.begin(), difference_ms.end());
  std::printf("first token at the client        %.2f\n", Median(client_ms));
  std::printf("first token by the router        %.2f\n", Median(router_ms));
  std::printf("client less router, by request   %.2f (%.2f to %.2f)\n", Median(difference_ms), *least, *most);
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  int tokens = 0, repeats = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[2], &tokens) || !absl::SimpleAtoi(argv[3], &repeats) || tokens < 1 ||
      repeats < 1) {
    std::fprintf(stderr, "usage: client_ttft ROUTER TOKENS REPEATS\n");
    return 2;
  }
  return runahead::Run(argv[1], tokens, repeats);
}
