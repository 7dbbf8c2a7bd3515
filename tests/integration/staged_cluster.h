// One stage of a request on a cluster of its own, with other requests beside it: for tests that work a fault on every
// stage. The stages of such a test run at the same time (ForEachStage): what takes time there is to stand still.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/faults_fixture.h"

namespace runahead {

// For one thread.
class StagedCluster : public FaultsCluster {
 public:
  explicit StagedCluster(Stage stage);
  // Where others were begun, some of them had prompts that were known.
  ~StagedCluster();

  // Begins a request and brings it to the stage; with `others`, one that is in decode begins before it, one in decode
  // whose prompt was known, and then one that crosses the same edge and needs no decode worker (it asks for one token).
  void Begin(bool others = true);
  // Decode-0 goes on, where it holds the request at the stage.
  void Release();
  const Answer& answer() { return staged_.running->answer(); }
  // The request gave what it gives alone.
  void ExpectUnharmed();
  // It failed with UNAVAILABLE.
  void ExpectFailed();
  // The others gave what they give alone.
  void ExpectOthersUnharmed();
  // As FaultsCluster's, of the same processes as in the beginning.
  void ExpectServiceAgain();

  const Stage stage_;
  std::map<std::string, pid_t> pids_;
  Staged staged_;

 private:
  struct Other {
    v1::GenerateRequest request;
    std::vector<int32_t> undisturbed;
    std::unique_ptr<Running> running;
  };

  std::vector<int32_t> undisturbed_;
  Other known_, in_decode_, one_token_;
  int with_known_ = 0, known_prompts_ = 0;  // others that were to begin with what is known, and that did
};

// Runs `body` with the stages' clusters, all at the same time. For one test.
void ForEachStage(const std::function<void(StagedCluster&)>& body);

}  // namespace runahead
