// Prints an answer as it comes, with a deadline; asks again where the service says so, or went away: then the answer goes
// on behind what came.
//
// usage: generate ROUTER PROMPT [SECONDS] [MAX_TOKENS]
// An API key, where the router asks for one, is taken from the environment: RUNAHEAD_API_KEY.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runahead/v1/inference.grpc.pb.h"
#include "runahead/v1/status.pb.h"

namespace v1 = runahead::v1;

namespace {

using Seconds = std::chrono::duration<double>;

// How long the service asks to wait before the same request is sent again; nothing where that is of no use.
std::optional<Seconds> RetryDelay(const grpc::Status& status) {
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : details.details()) {
    v1::RetryInfo info;
    if (detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo" && info.ParseFromString(detail.value())) {
      return Seconds(info.retry_delay().seconds() + info.retry_delay().nanos() / 1e9);
    }
  }
  // Nobody answered: the router went away.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return Seconds(1);
  return std::nullopt;
}

void Show(const v1::GenerateResponse& response) {
  if (response.has_started()) {
    const v1::Plan& plan = response.started().plan();
    std::printf("plan %s:", plan.schedule().c_str());
    for (int i = 0; i < plan.workers_size(); ++i) std::printf(" %s (%d)", plan.workers(i).c_str(), plan.parts(i));
    if (plan.known_tokens() > 0) std::printf(" behind %d tokens", plan.known_tokens());  // that were known: no chain
    std::printf(", decoded by %s\n", plan.decode_worker().c_str());
  }
  for (const int id : response.tokens().ids()) std::printf("token %d\n", id);
  if (response.has_finished()) {
    const v1::Timing& timing = response.finished().timing();
    std::printf("first token after %.4f s, then %.4f s a token\n", timing.ttft_s(), timing.tpot_s());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: generate ROUTER PROMPT [SECONDS] [MAX_TOKENS]\n");
    return 2;
  }
  const auto stub = v1::Inference::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.set_prompt(argv[2]);
  request.mutable_stop()->set_max_tokens(argc > 4 ? std::stoi(argv[4]) : 32);
  const Seconds limit(argc > 3 ? std::stod(argv[3]) : 60);
  const auto deadline = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(limit);

  std::vector<int> ids;  // of the answer, that came
  while (true) {
    grpc::ClientContext context;  // of one try; context.TryCancel(), from any thread, ends it
    context.set_deadline(deadline);
    if (const char* key = std::getenv("RUNAHEAD_API_KEY")) {
      context.AddMetadata("authorization", std::string("Bearer ") + key);
    }
    const auto reader = stub->Generate(&context, request);
    std::optional<std::uint64_t> seed;
    for (v1::GenerateResponse response; reader->Read(&response);) {
      if (response.has_started()) seed = response.started().seed();
      ids.insert(ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
      Show(response);
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) return 0;
    std::fprintf(stderr, "failed with code %d: %s\n", status.error_code(), status.error_message().c_str());
    const std::optional<Seconds> delay = RetryDelay(status);
    if (!delay.has_value() || std::chrono::system_clock::now() + *delay > deadline) return 1;
    if (seed.has_value()) request.mutable_sampling()->set_seed(*seed);
    request.mutable_output_ids()->Assign(ids.begin(), ids.end());  // the answer goes on behind them
    std::printf("asking again in %g s\n", delay->count());
    std::this_thread::sleep_for(*delay);
  }
}
