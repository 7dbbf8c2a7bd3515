// `runahead up` as a user starts it, and calls to it: for tests of the whole product.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "tests/testing/patience.h"
#include "tests/testing/test_process.h"

namespace runahead {

// The router's own code has another Answer, and some tests link both.
inline namespace calls {
// What a Generate call gave.
struct Answer {
  grpc::Status status;
  v1::Started started;
  std::vector<int32_t> ids;
  std::vector<v1::TokenLogprobs> logprobs;
  std::vector<v1::TokenLogprobs> prompt_logprobs;  // of the prompt's tokens but the first
  std::string text;
  v1::Finished finished;
};
}  // namespace calls

class LocalCluster {
 public:
  // `arguments` follow "runahead up --http off"; logs go to a file that is shown when the test fails. `environment` is that of all
  // processes besides ours, as "NAME=value". `credentials`: of our channel to the router.
  LocalCluster(const std::string& model, const std::vector<std::string>& arguments,
               const std::vector<std::string>& environment = {},
               const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials());
  ~LocalCluster();

  v1::Inference::Stub& stub() { return *stub_; }
  const std::string& router() const { return router_; }
  // The process that has this name now; waits until there is one.
  pid_t pid(const std::string& name) const;
  // All of them by name, as they are now.
  std::map<std::string, pid_t> pids() const;
  // The value of a metric's line ("runahead_kv_leases"), or -1 where there is none or the process is away.
  double Metric(const std::string& process, const std::string& line) const;
  // The sum of all lines that begin so, whatever their further labels; 0 where there is none.
  double Sum(const std::string& process, const std::string& beginning) const;
  // All that the processes have logged.
  std::string Log() const;
  // Requests that the router itself saw end with a code ("CANCELLED"), of the one model that it serves.
  double Ended(const std::string& code) const;

  // Runs a whole call, with a deadline of kPatience where the caller brings no context. `on_token` is called with the
  // number of tokens so far, after each message.
  Answer Generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr,
                  const std::function<void(size_t)>& on_token = nullptr);
  // Asks until an answer comes: for what must work again some time after a fault.
  Answer GenerateEventually(const v1::GenerateRequest& request);
  // Decode holds no lease and prefill no memory any more, long before a lease would expire by itself.
  void ExpectAllFree();

  static constexpr absl::Duration kPatience = absl::Minutes(2);

 private:
  std::string Metrics(const std::string& process) const;

  std::string log_;
  std::unique_ptr<testing::TestProcess> up_;
  std::string router_;
  std::string model_name_;
  std::vector<std::pair<std::string, std::string>> metrics_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A whole call over `stub`; `on_token` as LocalCluster's.
Answer GenerateOver(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                    grpc::ClientContext* context = nullptr, const std::function<void(size_t)>& on_token = nullptr);

// Asks again, a little later each time, until it is true; false when `patience` ran out.
bool Eventually(const std::function<bool()>& is_true,
                absl::Duration patience = testing::Patience(LocalCluster::kPatience));

// As a user asks: what is known of its beginning is used, and it leaves its own.
v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int max_tokens);

// Takes the way of a first turn, whatever was asked before: a chain, a hand-off, a decode worker. For references, and
// for tests of that way.
v1::GenerateRequest Uncached(v1::GenerateRequest request);

// `count` seeded ids of a synthetic vocabulary, none of them special.
std::vector<int32_t> SyntheticIds(int count, int seed);

}  // namespace runahead
