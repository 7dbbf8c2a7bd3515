// What tests of faults share: a cluster on which the stages of a request last long enough to be hit, and what must hold
// of every answer and of the cluster afterwards.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "tests/integration/local_cluster.h"

namespace runahead {

// Writes a small model whose weights are quantised, so that `auto` takes int8 on CPUs that have it. Its path.
std::string WriteQuantisedModel(const std::string& name);

// A client with a connection of its own.
std::unique_ptr<v1::Inference::Stub> OwnStub(const std::string& router);

// A request that runs in a thread of its own, over a connection of its own. Ends with the object.
class Running {
 public:
  // With a deadline of `patience`.
  Running(const LocalCluster& cluster, const v1::GenerateRequest& request,
          absl::Duration patience = LocalCluster::kPatience);
  ~Running();

  size_t tokens() const { return tokens_; }  // so far
  void Cancel() { context_.TryCancel(); }
  // Waits for the end.
  const Answer& answer();

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::ClientContext context_;
  std::atomic<size_t> tokens_ = 0;
  Answer answer_;
  std::thread thread_;
};

// Clients that ask one request after the other, each over a connection of its own.
class Load {
 public:
  struct Request {
    v1::GenerateRequest request;
    std::vector<int32_t> ids;  // what an undisturbed run of it gives
  };
  // One client for each request.
  Load(const LocalCluster& cluster, std::vector<Request> requests);
  ~Load();

  // Waits until each client has had another answer of a request that it began after this call.
  void AwaitRound();
  // Ends the clients after their requests. Every answer must be the undisturbed one, to the last token, and some must
  // have begun with what was known where requests may.
  void Stop();

 private:
  void Run(size_t client);

  const std::vector<Request> requests_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  Mutex mu_;
  CondVar changed_;
  std::vector<std::vector<Answer>> answers_ RUNAHEAD_GUARDED_BY(mu_);  // of each client
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// SIGSTOP, and no thread of the process runs any more when this returns: on a busy machine that takes a while.
void StopProcess(pid_t pid);

// Stops a process for so long, and lets it go on.
void PauseFor(absl::Duration duration, pid_t pid);

// Where a fault may hit a request: its lease is asked for; its prompt is computed; its first token is out and its
// hand-off is not over; its tokens come from the decode worker.
enum class Stage { kReserve, kPrefill, kHandoff, kDecode };

// A request that was brought to a stage.
struct Staged {
  std::unique_ptr<Running> running;
  std::optional<absl::Time> decode_stands_since;  // decode-0, where it was stopped to hold the request there
};

// For one thread.
class FaultsCluster {
 public:
  // Two prefill workers and a decode worker, unless `workers` says otherwise.
  explicit FaultsCluster(std::vector<std::string> workers = {"--prefill", "2", "--decode", "1"},
                         const std::vector<std::string>& environment = {});

  // In prefill for seconds: the edges are slow.
  static v1::GenerateRequest LongPrompt(int width = 2);
  static v1::GenerateRequest ShortPrompt(int width);
  // In decode for seconds, of one prefill worker.
  static v1::GenerateRequest LongAnswer();
  // Small ones of one prefill worker and of two, ones that begin alike behind what a decode worker knows, and what they
  // give on this cluster.
  std::vector<Load::Request> MixedLoad();

  // Begins a LongPrompt and waits until it is in mid-prefill: prefill-1 has got the first bytes from prefill-0.
  std::unique_ptr<Running> BeginLongPrompt(const v1::GenerateRequest& request = LongPrompt(),
                                           absl::Duration patience = LocalCluster::kPatience);
  // Begins LongAnswer and waits for the third token: its hand-off is over.
  std::unique_ptr<Running> BeginLongAnswer();
  // A longer answer, behind a prompt of which a decode worker may know all but the last token.
  static v1::GenerateRequest KnownAnswer();
  // Sees that a decode worker knows the prompt of `request`, begins that, and waits for the third token. Nothing else
  // is on its way.
  std::unique_ptr<Running> BeginKnownAnswer(const v1::GenerateRequest& request = KnownAnswer());
  // What BeginAt asks for.
  static v1::GenerateRequest RequestFor(Stage stage);
  // Begins a request over all of two prefill workers (in decode: over one) and waits until it is at the stage. It stays
  // there for seconds, or until decode-0 goes on.
  Staged BeginAt(Stage stage);
  // The whole line serves, no way between workers is broken, and nothing is held.
  void ExpectServiceAgain();
  // `answer` failed with UNAVAILABLE, naming `worker` and when to ask again unless it is empty, and what came of it is
  // right.
  static void ExpectFailed(const Answer& answer, const std::vector<int32_t>& undisturbed, const std::string& worker);
  static void ExpectUnharmed(const Answer& answer, const std::vector<int32_t>& undisturbed);
  // What `body` does ends no worker's control stream. A busy machine may end one meanwhile: so `body` runs up to three
  // times, and what ends one by itself ends one each time.
  void ExpectNoStreamEnds(const std::function<void()>& body);

  LocalCluster cluster_;
  int line_ = 0;  // prefill workers
};

class FaultsTest : public ::testing::Test, protected FaultsCluster {
 protected:
  using FaultsCluster::FaultsCluster;
};

}  // namespace runahead
