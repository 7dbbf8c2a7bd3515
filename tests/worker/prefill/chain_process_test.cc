// A prefill chain of real processes, each with a device of its own, without any service, and a decode worker's store in
// this one: what the tail computes and what lies in the store is what one process alone computes, and a peer's violent
// death ends the job and nothing else. On the @gpu form all processes share a GPU and the KV goes over NCCL, which a
// distinct NCCL_HOSTID for each makes possible.
#include <gtest/gtest.h>

#include <algorithm>
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
#include "server/base/clock.h"
#include "server/base/random.h"
#include "tests/testing/exactness.h"
#include "tests/testing/expected_run.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/stored_kv.h"
#include "tests/testing/test_device.h"
#include "tests/worker/link/peer_process.h"
#include "worker/handoff/message_handoff.h"
#include "worker/link/tcp/tcp_engine.h"

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
  Worker(const char* peer, const std::string& model, DType dtype, int64_t tokens, const PeerId& decode, int number)
      : process_(
            peer, {model, std::string(DTypeName(dtype)), std::to_string(tokens), testing::ToArgument(decode)},
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

// The other end of hand-off: a store in this process.
class DecodeSide {
 public:
  DecodeSide(const LoadedModel& loaded, DType dtype)
      : engine_(*TcpEngine::Start({RandomBits64()})),
        store_(*KvStore::Create({loaded.model->config().layers, loaded.model->kv_row_bytes(), 64 * kKvBlockTokens,
                                 engine_->self().incarnation},
                                device_, RealClock())),
        receiver_(*store_, {.kv_form = FormOf(dtype)}),
        from_engine_(*engine_, receiver_) {}

  PeerId self() const { return engine_->self(); }
  KvStore& store() { return *store_; }

 private:
  testing::FakeDevice device_;
  const std::unique_ptr<MessageEngine> engine_;
  const std::unique_ptr<KvStore> store_;
  SliceReceiver receiver_;
  MessageHandoffReceiver from_engine_;
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
    loaded_ = LoadForTest(path_, dtype, 2);
    decode_ = std::make_unique<DecodeSide>(loaded_, dtype);
    rule_ = std::make_unique<TokenRule>(dtype);
    workers_.resize(kProcesses);
    for (int i = 0; i < kProcesses; ++i) Start(i);
    FormLine();
  }
  void Start(int i) {
    workers_[i] = std::make_unique<Worker>(OnCpu(i) ? kCpuPeer : kPeer, path_, dtype_, tokens(), decode_->self(), i);
  }
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
    const LeaseId lease = leases_[job] =
        *decode_->store().Reserve({.prompt_tokens = prompt.bounds.back(), .total_tokens = prompt.bounds.back()});
    for (int part = 0; part < prompt.parts(); ++part) {
      workers_[prompt.first + part]->Tell(absl::StrCat("start ", job, " ", part, " ", absl::StrJoin(prompt.bounds, ","),
                                                       " ", prompt.seed, " ", lease.incarnation, ":", lease.number));
    }
  }
  // All parts end well, and the tail's logits and the store's KV are those of one process.
  void ExpectWhole(int job, const Prompt& prompt) {
    for (int part = 0; part < prompt.parts(); ++part) {
      const Ended ended = workers_[prompt.first + part]->AwaitDone(job);
      ASSERT_TRUE(ended.in_time) << "part " << part;
      ASSERT_EQ(ended.code, 0) << "part " << part << ": " << ended.message;
    }
    ExpectToken(workers_[prompt.tail()]->Await(absl::StrCat("token ", job)), prompt);
    ExpectStored(job, prompt);
  }
  void ExpectToken(const std::string& line, const Prompt& prompt);
  // To the bit what the workers made; in f32 what one process makes, too.
  void ExpectStored(int job, const Prompt& prompt);
  // What one pass in this process makes of the prompt.
  const ExpectedRun& Alone(const Prompt& prompt);

  DType dtype_ = DType::kF32;
  bool mixed_ = false;
  std::string path_;
  LoadedModel loaded_;
  std::unique_ptr<DecodeSide> decode_;
  std::map<int, LeaseId> leases_;  // by job
  std::map<std::pair<int64_t, uint64_t>, ExpectedRun> runs_;
  std::unique_ptr<TokenRule> rule_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

const ExpectedRun& ChainProcess::Alone(const Prompt& prompt) {
  ExpectedRun& run = runs_[{prompt.bounds.back(), prompt.seed}];
  if (run.kv.empty()) {
    run = PlainRun(loaded_, RandomIds(prompt.bounds.back(), loaded_.model->config().vocab, prompt.seed));
  }
  return run;
}

void ChainProcess::ExpectToken(const std::string& line, const Prompt& prompt) {
  const std::vector<double>& alone = Alone(prompt).logits.back();
  const std::vector<std::string> words = absl::StrSplit(line, ' ');  // token JOB ID LOGPROB...
  ASSERT_EQ(words.size(), alone.size() + 3) << line.substr(0, 80);
  std::vector<TokenLogprobPair> logprobs;
  for (size_t id = 0; id < alone.size(); ++id) {
    TokenLogprobPair& pair = logprobs.emplace_back(TokenLogprobPair{static_cast<int32_t>(id), 0});
    ASSERT_TRUE(absl::SimpleAtof(words[id + 3], &pair.logprob));
  }
  if (dtype_ == DType::kF32) ExpectLogprobs(logprobs, alone);
  rule_->Add(std::stoi(words[2]), TopOf(alone));
}

void ChainProcess::ExpectStored(int job, const Prompt& prompt) {
  const StoredKv stored(decode_->store(), leases_.at(job));
  const ExpectedRun& alone = Alone(prompt);
  for (int64_t layer = 0; layer < loaded_.model->config().layers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    for (int part = 0; part < prompt.parts(); ++part) {
      const int64_t begin = prompt.bounds[part], end = prompt.bounds[part + 1];
      const std::string slice = absl::StrCat("slice ", job, " ", layer, " ", begin, " ", end);
      EXPECT_EQ(workers_[prompt.first + part]->Await(slice), absl::StrCat(slice, " ", stored.Hash(layer, begin, end)));
    }
    if (dtype_ != DType::kF32) continue;
    ExpectRows(Floats(stored.Bytes(layer, 0, prompt.bounds.back())), alone.kv[layer], alone.kv_dim);
  }
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
  const int64_t token_bytes = loaded_.model->config().layers * loaded_.model->kv_row_bytes();
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
  // In 16 bits it takes many steps: each is the token after another beginning of a text, on a chain of any width.
  const int steps = GetParam() == DType::kF32 ? 0 : TestDeviceIsSlow() ? 34 : 200;
  for (int i = rule_->steps(); i < steps; ++i) {
    const int parts = 2 + i % 3;
    Prompt prompt{i % (kProcesses - parts + 1), {0}, 9};
    const int64_t length = TestDeviceIsSlow() ? 8 + i % 8 : 20 + i;
    for (int part = 1; part <= parts; ++part) prompt.bounds.push_back(length * part / parts);
    StartJob(++job, prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(job, prompt));
  }
  rule_->ExpectKept();
  RecordProperty("different", rule_->different());
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, ChainProcessOf, ::testing::ValuesIn(TestDeviceDTypes()),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

// Where there is one kind of device only, there is nothing to mix.
class MixedChain : public ChainProcessOf {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MixedChain);

TEST_P(MixedChain, GpusAndCpusInTurnGiveTheLogitsOfOne) {
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

INSTANTIATE_TEST_SUITE_P(DTypes, MixedChain,
                         ::testing::ValuesIn(FormOfTestDevice() == TestDeviceForm::kCpu ? std::vector<DType>{}
                                                                                        : std::vector{DType::kF32}),
                         [](const auto& dtype) { return std::string(DTypeName(dtype.param)); });

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
    decode_->store().Release(leases_.at(job));
    Start(victim);
    ASSERT_NO_FATAL_FAILURE(FormLine());
    StartJob(++job, prompt);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(job, prompt));
  }
  for (const auto& worker : workers_) EXPECT_EQ(worker->End(), 0);
}

}  // namespace
}  // namespace runahead
