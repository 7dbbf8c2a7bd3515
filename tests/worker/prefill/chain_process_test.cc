// A prefill chain of real processes, each with a device of its own, without any service: what the tail computes is what
// one process alone computes, and a peer's violent death ends the job and nothing else. On the @gpu form all processes
// share a GPU and the KV goes over NCCL, which a distinct NCCL_HOSTID for each makes possible.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/test_device.h"
#include "tests/worker/link/peer_process.h"

namespace runahead {
namespace {

using ::runahead::testing::PeerProcess;

const char* const kCpuPeer = "worker_prefill_chain_peer";

// What the peers' binary of this form is called, and what their edges must be.
struct Form {
  const char* peer;
  const char* transport;
};
Form ThisForm() {
  switch (FormOfTestDevice()) {
    case TestDeviceForm::kCpu:
      return {kCpuPeer, "message"};
    case TestDeviceForm::kEmulated:
      return {"worker_prefill_chain_peer_emulated", "staged"};
    case TestDeviceForm::kGpu:
      return {"worker_prefill_chain_peer_gpu", "nccl"};
  }
  RUNAHEAD_CHECK(false);
}
const char* const kPeer = ThisForm().peer;
const char* const kTransport = ThisForm().transport;

// For whatever ends by itself: more than links between GPUs take at most to be made or to fail.
constexpr absl::Duration kBound = absl::Seconds(45);

// Heads of 64 in groups: in 16-bit types the GPU runs the attention kernels that it runs in service.
SyntheticModel ChainModel() {
  const bool slow = TestDeviceIsSlow();
  SyntheticModel model;
  model.name = "chain";
  model.layers = slow ? 4 : 6;
  model.heads = slow ? 2 : 4;
  model.kv_heads = slow ? 1 : 2;
  model.head_dim = 64;
  model.hidden = slow ? 64 : 256;
  model.ffn = slow ? 96 : 320;
  return model;
}

// A prompt on processes [first, first + parts).
struct Prompt {
  int first = 0;
  std::vector<int64_t> bounds;
  uint64_t seed = 0;

  int parts() const { return static_cast<int>(bounds.size()) - 1; }
  int tail() const { return first + parts() - 1; }
};

// How a job ended at one process.
struct Ended {
  bool in_time = false;
  int code = 0;
  std::string message;
};

// A process of the chain. Its words are kept until they are asked for.
class Worker {
 public:
  Worker(const char* peer, const std::string& model, DType dtype, int64_t tokens, int number)
      : process_(
            peer, {model, std::string(DTypeName(dtype)), std::to_string(tokens)},
            {{"NCCL_HOSTID", absl::StrCat("chain-", number)}, {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}}) {
  }

  // "self ...": it is ready. Empty when it is not.
  const std::string& self() {
    if (self_.empty()) {
      const std::vector<std::string> words = absl::StrSplit(process_.ReadLine(), ' ');
      if (words.size() == 2 && words[0] == "self") self_ = words[1];
    }
    return self_;
  }
  void Tell(const std::string& line) { process_.WriteLine(line); }
  // The line that begins with `what`; empty when it does not come in time.
  std::string Await(const std::string& what) {
    const absl::Time deadline = absl::Now() + kBound;
    for (;;) {
      const auto found = std::find_if(said_.begin(), said_.end(), [&](const std::string& line) {
        return line.compare(0, what.size() + 1, what + " ") == 0 || line == what;
      });
      if (found != said_.end()) {
        const std::string line = *found;
        said_.erase(found);
        return line;
      }
      std::string line = process_.ReadLine(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      if (line.empty()) return "";
      said_.push_back(std::move(line));
    }
  }
  Ended AwaitDone(int job) {
    const std::string line = Await(absl::StrCat("done ", job));
    if (line.empty()) return {};
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    linked_ = std::stoll(words.at(3));
    handed_ = std::stoll(words.at(4));
    return {true, std::stoi(words.at(2)), words.at(5)};
  }
  // Bytes in all, as the last job that ended reported: over links between GPUs, and handed off.
  int64_t linked() const { return linked_; }
  int64_t handed() const { return handed_; }
  void Kill() { process_.Kill(); }
  int End() {
    Tell("end");
    return process_.Await();
  }

 private:
  PeerProcess process_;
  std::string self_;
  std::vector<std::string> said_;
  int64_t linked_ = 0, handed_ = 0;
};

class ChainProcess : public ::testing::Test {
 protected:
  static constexpr int kProcesses = 4;

  // Of the longest prompt.
  int64_t tokens() const { return TestDeviceIsSlow() ? 40 : 400; }
  // `fraction` of the longest prompt.
  int64_t At(double fraction) const { return static_cast<int64_t>(fraction * static_cast<double>(tokens())); }

  void StartAll(DType dtype) {
    dtype_ = dtype;
    path_ = WriteSynthetic(ChainModel(), absl::StrCat("chain-", kTransport));
    workers_.resize(kProcesses);
    for (int i = 0; i < kProcesses; ++i) Start(i);
    FormLine();
  }
  void Start(int i) { workers_[i] = std::make_unique<Worker>(OnCpu(i) ? kCpuPeer : kPeer, path_, dtype_, tokens(), i); }
  // Every other process, where the chain is mixed.
  bool OnCpu(int i) const { return mixed_ && i % 2 == 1; }
  // Of the edge that process `i` has to `neighbour`.
  std::string Transport(int i, int neighbour) const {
    if (neighbour < 0 || neighbour >= kProcesses) return "-";
    return OnCpu(i) ? "message" : OnCpu(neighbour) ? "staged" : kTransport;
  }

  // Tells every process who its neighbours are now; all edges must be what this form is about.
  void FormLine() {
    for (const auto& worker : workers_) ASSERT_NE(worker->self(), "") << "a process did not start";
    for (int i = 0; i < kProcesses; ++i) {
      const std::string before = i > 0 ? workers_[i - 1]->self() : "-";
      const std::string after = i + 1 < kProcesses ? workers_[i + 1]->self() : "-";
      workers_[i]->Tell(absl::StrCat("line ", before, " ", after));
    }
    for (int i = 0; i < kProcesses; ++i) {
      const std::string line = workers_[i]->Await("line");
      std::printf("process %d, transport: %s\n", i, line.empty() ? "none" : line.substr(5).c_str());
      ASSERT_EQ(line, absl::StrCat("line ", Transport(i, i - 1), " ", Transport(i, i + 1)));
    }
  }

  void StartJob(int job, const Prompt& prompt) {
    for (int part = 0; part < prompt.parts(); ++part) {
      workers_[prompt.first + part]->Tell(
          absl::StrCat("start ", job, " ", part, " ", absl::StrJoin(prompt.bounds, ","), " ", prompt.seed));
    }
  }
  // All parts end well, and the tail has the logits of one process.
  void ExpectWhole(int job, const Prompt& prompt) {
    for (int part = 0; part < prompt.parts(); ++part) {
      const Ended ended = workers_[prompt.first + part]->AwaitDone(job);
      ASSERT_TRUE(ended.in_time) << "part " << part;
      ASSERT_EQ(ended.code, 0) << "part " << part << ": " << ended.message;
    }
    ExpectLogits(workers_[prompt.tail()]->Await(absl::StrCat("token ", job)), prompt);
  }
  void ExpectLogits(const std::string& line, const Prompt& prompt);
  // What one pass in this process makes of the prompt: logits of its last token.
  const std::vector<float>& Alone(const Prompt& prompt);

  DType dtype_ = DType::kF32;
  bool mixed_ = false;
  std::string path_;
  std::unique_ptr<LoadedModel> alone_;
  std::map<std::pair<int64_t, uint64_t>, std::vector<float>> logits_;
  double worst_ = 0;  // difference, as a share of the largest logit
  std::vector<std::unique_ptr<Worker>> workers_;
};

const std::vector<float>& ChainProcess::Alone(const Prompt& prompt) {
  if (alone_ == nullptr) alone_ = std::make_unique<LoadedModel>(LoadForTest(path_, dtype_, 2));
  std::vector<float>& logits = logits_[{prompt.bounds.back(), prompt.seed}];
  if (logits.empty()) {
    SequenceRunner runner(*alone_, prompt.bounds.back());
    const auto ids = RandomIds(prompt.bounds.back(), alone_->model->config().vocab, prompt.seed);
    logits = runner.Append(ids, /*batch_invariant=*/false, /*all_logits=*/false)[0];
  }
  return logits;
}

void ChainProcess::ExpectLogits(const std::string& line, const Prompt& prompt) {
  const std::vector<float>& alone = Alone(prompt);
  const std::vector<std::string> words = absl::StrSplit(line, ' ');  // token JOB ID LOGPROB...
  ASSERT_EQ(words.size(), alone.size() + 3) << line.substr(0, 80);
  const Top top = TopOf(alone);
  double sum = 0;
  float largest = 0;
  for (const float logit : alone) {
    sum += std::exp(logit - alone[top.id]);
    largest = std::max(largest, std::abs(logit));
  }
  // 16-bit types: each of the layers rounds what it adds, to 8 bits at the least, and on a chain it rounds sums that
  // were added up in another order.
  const double tolerance = dtype_ == DType::kF32 ? 1e-4 * largest : 0.05 * largest;
  double worst = 0;
  for (size_t id = 0; id < alone.size(); ++id) {
    float logprob = 0;
    ASSERT_TRUE(absl::SimpleAtof(words[id + 3], &logprob));
    worst = std::max(worst, std::abs(logprob - (alone[id] - alone[top.id] - std::log(sum))));
  }
  EXPECT_LE(worst, tolerance) << "of logits up to " << largest;
  const float least_margin = dtype_ == DType::kF32 ? 1e-3f : 0.5f;
  EXPECT_TRUE(top.margin < least_margin || words[2] == std::to_string(top.id)) << words[2] << ", not " << top.id;
  worst_ = std::max(worst_, worst / largest);
  RecordProperty("worst", absl::StrCat(worst_));
}

class ChainProcessOf : public ChainProcess, public ::testing::WithParamInterface<DType> {};

TEST_P(ChainProcessOf, TwoThreeAndFourProcessesGiveTheLogitsOfOne) {
  RUNAHEAD_NEED_TEST_DEVICE(GetParam());
  ASSERT_NO_FATAL_FAILURE(StartAll(GetParam()));
  const int64_t all = tokens();
  const std::vector<Prompt> prompts = {
      {0, {0, all}, 1},
      {0, {0, At(0.7), all}, 1},
      {2, {0, 1, At(0.6)}, 2},
      {1, {0, At(0.45), At(0.5), At(0.9)}, 3},
      {0, {0, At(0.5), At(0.8), all - 1, all}, 4},
      {0, {0, 1, 2, 3, 4}, 5},
  };
  int job = 0;
  for (const Prompt& prompt : prompts) {
    SCOPED_TRACE(absl::StrCat("alone, on ", prompt.first, ": ", absl::StrJoin(prompt.bounds, ",")));
    StartJob(++job, prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(job, prompt));
  }
  // All at once: in one order everywhere, as a router would start them.
  const int before = job;
  for (const Prompt& prompt : prompts) StartJob(++job, prompt);
  job = before;
  for (const Prompt& prompt : prompts) {
    SCOPED_TRACE(absl::StrCat("with others, on ", prompt.first, ": ", absl::StrJoin(prompt.bounds, ",")));
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(++job, prompt));
  }
  // Every process passed on what it held, and handed off what it made; twice.
  const AttentionShape& shape = alone_->model->attention_shape();
  const int64_t token_bytes = alone_->model->config().layers * shape.kv_row_bytes();
  for (int i = 0; i < kProcesses; ++i) {
    int64_t passed = 0, made = 0;
    for (const Prompt& prompt : prompts) {
      const int part = i - prompt.first;
      if (part < 0 || part >= prompt.parts()) continue;
      if (part + 1 < prompt.parts()) passed += prompt.bounds[part + 1];
      made += prompt.bounds[part + 1] - prompt.bounds[part];
    }
    EXPECT_EQ(workers_[i]->handed(), 2 * made * token_bytes) << "process " << i;
    EXPECT_EQ(workers_[i]->linked(), std::string(kTransport) == "nccl" ? 2 * passed * token_bytes : 0)
        << "process " << i;
  }
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, ChainProcessOf, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

TEST_F(ChainProcess, GpusAndCpusInTurnGiveTheLogitsOfOne) {
  if (FormOfTestDevice() == TestDeviceForm::kCpu) GTEST_SKIP() << "there is one kind of device only";
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  mixed_ = true;
  ASSERT_NO_FATAL_FAILURE(StartAll(DType::kF32));
  const std::vector<Prompt> prompts = {{0, {0, At(0.3), At(0.6), At(0.8), tokens()}, 7},
                                       {1, {0, At(0.5), tokens()}, 8}};
  int job = 0;
  for (const Prompt& prompt : prompts) StartJob(++job, prompt);
  job = 0;
  for (const Prompt& prompt : prompts) ASSERT_NO_FATAL_FAILURE(ExpectWhole(++job, prompt));
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), 0);
}

TEST_F(ChainProcess, AKilledProcessEndsTheJobAndAnotherTakesItsPlace) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  ASSERT_NO_FATAL_FAILURE(StartAll(DType::kF32));
  const int64_t all = tokens();
  const Prompt prompt = {0, {0, At(0.4), At(0.5), At(0.8), all}, 6};
  int job = 1;
  StartJob(job, prompt);
  ASSERT_NO_FATAL_FAILURE(ExpectWhole(job, prompt));
  for (const int victim : {1, 0, 3}) {
    SCOPED_TRACE(absl::StrCat("process ", victim, " is killed"));
    ++job;
    workers_[victim]->Tell(absl::StrCat("hold ", job));
    StartJob(job, prompt);
    ASSERT_NE(workers_[victim]->Await(absl::StrCat("holding ", job)), "");
    workers_[victim]->Kill();
    for (int i = 0; i < kProcesses; ++i) {
      if (i == victim) continue;
      const Ended ended = workers_[i]->AwaitDone(job);
      ASSERT_TRUE(ended.in_time) << "process " << i;
      // Beyond a neighbour one may have been through with the job before.
      if (i == victim - 1 || i == victim + 1) {
        EXPECT_EQ(static_cast<absl::StatusCode>(ended.code), absl::StatusCode::kUnavailable)
            << "process " << i << ": " << ended.message;
      }
      EXPECT_TRUE(i < victim || ended.code != 0) << "process " << i;
    }
    Start(victim);
    ASSERT_NO_FATAL_FAILURE(FormLine());
    StartJob(++job, prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(job, prompt));
  }
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), 0);
}

}  // namespace
}  // namespace runahead
