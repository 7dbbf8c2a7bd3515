// Workers in processes of their own, whose links may be paced, behind a router in this one.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/monotonic.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/bench/door_process.h"
#include "tests/bench/must.h"
#include "tests/testing/serving_router.h"

namespace runahead {

struct ClusterSetup {
  std::string model;
  std::string table;  // a partition file; empty: none
  std::string dtype = "auto";
  int prefill = 2;
  int threads = 1;  // of each worker
  double gbps = 0;  // of each connection of a worker, each way; 0: as fast as it is
};

inline std::string StartedWorker(std::vector<std::unique_ptr<Child>>& children, const std::string& role, int number,
                                 const ClusterSetup& setup) {
  std::vector<std::string> words = {"/usr/bin/env"};
  if (setup.gbps > 0) {
    words.push_back(absl::StrCat("LD_PRELOAD=", Beside("librunahead_paced_sockets.so")));
    words.push_back(absl::StrCat("RUNAHEAD_PACED_GBPS=", setup.gbps));
  }
  const auto given = [&words](const std::string& name, const std::string& value) {
    words.push_back(absl::StrCat("--", name, "=", value));
  };
  words.push_back(Beside("../bin/runahead-worker"));
  given("role", role);
  given("name", absl::StrCat(role, "-", number));
  given("model", setup.model);
  given("listen", "127.0.0.1:0");
  given("metrics-listen", "127.0.0.1:0");
  given("threads", absl::StrCat(setup.threads));
  given("dtype", setup.dtype);
  if (role == "decode") given("kv-memory", "4GiB");
  given("log-level", "error");
  given("ready-fd", absl::StrCat(Child::kSaysOn));
  children.push_back(std::make_unique<Child>(words));
  const std::string& line = children.back()->line();  // {"address":"127.0.0.1:1234",..
  const size_t begin = line.find("127.0.0.1"), end = line.find('"', begin);
  if (end == std::string::npos) Die(line);
  return line.substr(begin, end - begin);
}

// What a call gave: seconds until its first token, and who computed the rest.
struct KnownAnswer {
  double ttft_s = 0;
  KnownWay way = KnownWay::kNone;
  int64_t known = 0;
};

class KnownWaysCluster {
 public:
  explicit KnownWaysCluster(const ClusterSetup& setup) {
    std::vector<WorkerSpec> specs;
    for (int i = 0; i < setup.prefill; ++i) specs.push_back({"prefill", StartedWorker(workers_, "prefill", i, setup)});
    specs.push_back({"decode", StartedWorker(workers_, "decode", 0, setup)});
    router_ = Must(testing::ServingRouter::Start(specs, setup.model, setup.table, setup.dtype));
    const absl::Time until = MonotonicNow() + absl::Minutes(2);
    while (router_->fleet.ready_prefill() < setup.prefill || router_->fleet.ready_decode() < 1) {
      if (MonotonicNow() > until) Must(absl::UnavailableError("the workers do not join"));
      absl::SleepFor(absl::Milliseconds(10));
    }
    stub_ = v1::Inference::NewStub(MakeChannel(router_->server->address()));
  }

  // Two tokens behind these ids; the router chooses unless it is told the way. No other call of Ask is under way.
  KnownAnswer Ask(const std::vector<int32_t>& ids, std::optional<KnownWay> way) {
    router_->parts.only_way = way;
    grpc::ClientContext context;
    const absl::Time began = MonotonicNow();
    const auto reader = stub_->Generate(&context, RequestOf(ids, 2));
    KnownAnswer answer;
    v1::Plan plan;
    for (v1::GenerateResponse response; reader->Read(&response);) {
      if (response.has_tokens() && answer.ttft_s == 0) answer.ttft_s = absl::ToDoubleSeconds(MonotonicNow() - began);
      if (response.has_started()) plan = response.started().plan();
      if (response.finished().has_plan()) plan = response.finished().plan();
    }
    const bool rows = plan.schedule() == "continuation";
    answer.known = plan.known_tokens();
    answer.way = rows ? KnownWay::kRows : answer.known > 0 ? KnownWay::kChain : KnownWay::kNone;
    Must(FromGrpcStatus(reader->Finish()));
    return answer;
  }

  // A sequence that decodes from when this is made until it goes.
  class Sequence {
   public:
    Sequence(v1::Inference::StubInterface& stub, v1::GenerateRequest request) {
      request.set_no_cache(true);
      reader_ = stub.Generate(&context_, request);
      v1::GenerateResponse response;
      do {
        if (!reader_->Read(&response)) Must(FromGrpcStatus(reader_->Finish()));
      } while (!response.has_tokens());
      thread_ = std::thread([this] {
        for (v1::GenerateResponse next; reader_->Read(&next);) {
        }
        ended_ = true;
        reader_->Finish();
      });
    }
    ~Sequence() {
      if (ended_) std::fprintf(stderr, "a sequence of the load ended too soon\n");
      context_.TryCancel();
      thread_.join();
    }
    Sequence(const Sequence&) = delete;
    Sequence& operator=(const Sequence&) = delete;

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderInterface<v1::GenerateResponse>> reader_;
    std::atomic<bool> ended_ = false;
    std::thread thread_;
  };
  std::unique_ptr<Sequence> Decode(const std::vector<int32_t>& ids) {
    const int64_t room = router_->parts.model.context_length - static_cast<int64_t>(ids.size());
    return std::make_unique<Sequence>(*stub_, RequestOf(ids, static_cast<int32_t>(room)));
  }

 private:
  static v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int32_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }

  std::vector<std::unique_ptr<Child>> workers_;
  std::unique_ptr<testing::ServingRouter> router_;  // goes before they do
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

}  // namespace runahead
