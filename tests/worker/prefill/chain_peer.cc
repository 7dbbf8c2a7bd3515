// One worker of a prefill chain, without gRPC; the other processes of chain_process_test: chain_peer MODEL DTYPE
// TOKENS DECODE, where TOKENS is the longest prompt and DECODE takes what is handed off. Says "self PEER" once it can
// work, then does what it reads:
//   line PREDECESSOR SUCCESSOR    opens the edges to them ("-": there is none); edges to others are closed. Answers
//                                 "line TRANSPORT TRANSPORT"
//   hold JOB                      never computes its second layer: says "holding JOB" instead, once it would
//   start JOB PART BOUNDS SEED LEASE    starts its part of a prompt, whose ids are drawn from SEED; bounds as "0,3,9".
//                                 Its KV goes to LEASE of DECODE's store, as "incarnation:number"
//   end                           ends in order
// and reports of jobs:
//   token JOB ID LOGPROB...       the tail, of the whole vocabulary by id
//   slice JOB LAYER BEGIN END HASH       what it hands off, as it made it
//   done JOB CODE SENT HANDED MESSAGE    bytes in all so far: over links between GPUs, and handed off
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/mutex.h"
#include "server/base/random.h"
#include "tests/testing/host_copies.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/test_device.h"
#include "tests/worker/link/peer_process.h"
#include "worker/handoff/message_handoff.h"
#include "worker/link/device_fit.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/model/warm_up.h"
#include "worker/prefill/stage.h"

namespace runahead::testing {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());  // whole, whichever thread says it
  std::fflush(stdout);
}

// Links between GPUs that count what they send: proof that they, and not the hosts, carried it.
class CountingLinks final : public PeerCommFactory {
 public:
  explicit CountingLinks(std::unique_ptr<PeerCommFactory> links) : links_(std::move(links)) {}
  const std::string& identity() const override { return links_->identity(); }
  absl::StatusOr<std::string> NewId() override { return links_->NewId(); }
  absl::StatusOr<std::unique_ptr<PeerComm>> Open(const std::string& id, PeerRank rank) override {
    RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<PeerComm> comm, links_->Open(id, rank));
    return std::make_unique<Comm>(std::move(comm), sent_);
  }
  int64_t sent() const { return *sent_; }

 private:
  class Comm final : public PeerComm {
   public:
    Comm(std::unique_ptr<PeerComm> comm, std::shared_ptr<std::atomic<int64_t>> sent)
        : comm_(std::move(comm)), sent_(std::move(sent)) {}
    Event ready() const override { return comm_->ready(); }
    Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) override {
      const int64_t size = static_cast<int64_t>(bytes.size);
      const Event event = comm_->Send(std::move(bytes), std::move(sum));
      event.OnFire([sent = sent_, size](const absl::Status& status) { *sent += status.ok() ? size : 0; });
      return event;
    }
    Event Recv(BufferRef into, std::shared_ptr<uint64_t> sum) override {
      return comm_->Recv(std::move(into), std::move(sum));
    }
    void Stop() override { comm_->Stop(); }
    absl::Status Health() const override { return comm_->Health(); }

   private:
    const std::unique_ptr<PeerComm> comm_;
    const std::shared_ptr<std::atomic<int64_t>> sent_;
  };

  const std::unique_ptr<PeerCommFactory> links_;
  const std::shared_ptr<std::atomic<int64_t>> sent_ = std::make_shared<std::atomic<int64_t>>(0);
};

// Says what it hands on, and counts the bytes.
class TellingHandoff final : public HandoffSender {
 public:
  TellingHandoff(std::unique_ptr<HandoffSender> next, std::atomic<int64_t>& handed)
      : next_(std::move(next)), handed_(handed) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override {
    after.OnFire([this, slice, bytes](const absl::Status& status) {
      if (!status.ok()) return;
      handed_ += static_cast<int64_t>(bytes.size);
      Say(absl::StrCat("slice ", JobOf(slice.lease), " ", slice.layer, " ", slice.begin, " ", slice.end, " ",
                       SumPieces(/*seed=*/0, {bytes})));
    });
    return next_->Push(decode, slice, std::move(bytes), after);
  }
  void Cancel(const LeaseId& lease) override { next_->Cancel(lease); }
  void Expect(JobId job, const LeaseId& lease) {
    MutexLock lock(mu_);
    jobs_[lease.number] = job;
  }

 private:
  JobId JobOf(const LeaseId& lease) {
    MutexLock lock(mu_);
    return jobs_.at(lease.number);
  }

  const std::unique_ptr<HandoffSender> next_;
  std::atomic<int64_t>& handed_;
  Mutex mu_;
  std::map<uint64_t, JobId> jobs_ RUNAHEAD_GUARDED_BY(mu_);  // by number of their lease
};

class HoldingTrace final : public TraceSink {
 public:
  void Hold(JobId job) { held_ = job; }
  void Add(JobId job, int64_t layer, TracePoint point) override {
    if (job != held_ || layer != 1 || point != TracePoint::kQkvBegin) return;
    Say(absl::StrCat("holding ", job));
    for (;;) pause();
  }

 private:
  std::atomic<JobId> held_{0};
};

class Worker final : public PrefillObserver {
 public:
  Worker(const std::string& model, DType dtype, int64_t max_tokens, PeerId decode)
      : loaded_(LoadForTest(model, dtype, 1)), decode_(std::move(decode)) {
    auto links = OpenTestPeerComms(*loaded_.device);
    if (!links.ok()) std::fprintf(stderr, "chain_peer: %s\n", links.status().ToString().c_str());
    RUNAHEAD_CHECK(links.ok());
    if (*links != nullptr) links_ = std::make_unique<CountingLinks>(*std::move(links));
    auto engine = TcpEngine::Start({RandomBits64()});
    RUNAHEAD_CHECK(engine.ok());
    engine_ = *std::move(engine);
    // A GPU's first launches wait for all that runs there, which would be the links' kernels.
    if (!TestDeviceIsSlow()) RUNAHEAD_CHECK(WarmUp(*loaded_.model, *loaded_.device, kUsePrefill).ok());
    edges_ = std::make_unique<MessageEdgeFactory>(*engine_, EdgesOf(*loaded_.device, kStagingBytes, links_.get()));
    auto telling =
        std::make_unique<TellingHandoff>(std::make_unique<SliceSender>(MakeMessageSliceTransport(*engine_)), handed_);
    telling_ = telling.get();
    handoff_ = std::move(telling);
    if (!loaded_.device->host_reads_device_memory()) {
      handoff_ = std::make_unique<HostCopies>(std::move(handoff_), *loaded_.device);
    }
    PrefillStageOptions options;
    const int64_t slots = std::max(loaded_.model->config().layers, kMinLayerSlots);
    options.memory_bytes = static_cast<size_t>(2 * slots * max_tokens * loaded_.model->kv_row_bytes());
    options.trace = &trace_;
    auto stage = PrefillStage::Create(options, *loaded_.device, loaded_.model, *handoff_, *this);
    if (!stage.ok()) std::fprintf(stderr, "chain_peer: %s\n", stage.status().ToString().c_str());
    RUNAHEAD_CHECK(stage.ok());
    stage_ = *std::move(stage);
  }

  // False: it shall end.
  bool Do(const std::vector<std::string>& words) {
    if (words[0] == "line") {
      FormLine(words.at(1), words.at(2));
    } else if (words[0] == "hold") {
      trace_.Hold(std::stoull(words.at(1)));
    } else if (words[0] == "start") {
      stage_->Start(JobOf(words));
    } else {
      RUNAHEAD_CHECK(words[0] == "end");
      return false;
    }
    return true;
  }
  PeerId self() const { return edges_->self(); }

  void OnFirstToken(const PrefillJob& job, const Sampled& token, double, double) override {
    std::map<int32_t, float> logprobs;
    for (const TokenLogprobPair& pair : token.logprobs) logprobs[pair.id] = pair.logprob;
    std::string line = absl::StrCat("token ", job.id, " ", token.id);
    for (const auto& [id, logprob] : logprobs) absl::StrAppendFormat(&line, " %.9g", logprob);
    Say(line);
  }
  void OnPromptScores(const PrefillJob&, int64_t, const std::vector<TokenLogprobPairs>&) override {}
  void OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes&) override {
    Say(absl::StrCat("done ", job.id, " ", static_cast<int>(end.status.code()), " ",
                     links_ == nullptr ? 0 : links_->sent(), " ", handed_.load(), " ", end.status.message()));
  }

 private:
  using Known = std::pair<PeerId, std::shared_ptr<Edge>>;

  void FormLine(const std::string& predecessor, const std::string& successor) {
    std::map<uint64_t, Known> known;
    std::string said = "line";
    const auto edge_to = [&](const std::string& text) -> std::shared_ptr<Edge> {
      if (text == "-") {
        said += " -";
        return nullptr;
      }
      const PeerId peer = FromArgument(text);
      const auto edge = edges_->Open(peer);  // one that is open already is the same again
      if (!edge.ok()) std::fprintf(stderr, "chain_peer: %s\n", edge.status().ToString().c_str());
      RUNAHEAD_CHECK(edge.ok());
      known[peer.incarnation] = {peer, *edge};
      absl::StrAppend(&said, " ", TransportTo(peer));
      return *edge;
    };
    predecessor_ = edge_to(predecessor);
    successor_ = edge_to(successor);
    for (const auto& [incarnation, former] : known_) {
      if (known.count(incarnation) == 0) edges_->Close(former.first);
    }
    known_ = std::move(known);
    Say(said);
  }

  std::string TransportTo(const PeerId& peer) const {
    const std::string own = self().device_link;
    if (DeviceLinkFits(own, peer.device_link).ok()) return own.substr(0, own.find(' '));
    return loaded_.device->host_reads_device_memory() ? "message" : "staged";
  }

  PrefillJob JobOf(const std::vector<std::string>& words) const {
    PrefillJob job;
    job.id = std::stoull(words.at(1));
    job.part = std::stoi(words.at(2));
    for (const absl::string_view bound : absl::StrSplit(words.at(3), ',')) {
      int64_t value = 0;
      RUNAHEAD_CHECK(absl::SimpleAtoi(bound, &value));
      job.bounds.push_back(value);
    }
    const std::vector<int32_t> ids =
        RandomIds(job.bounds.back(), loaded_.model->config().vocab, std::stoull(words.at(4)));
    if (job.part > 0) job.predecessor = predecessor_;
    if (!job.tail()) job.successor = successor_;
    job.ids.assign(ids.begin() + (job.tail() ? 0 : job.begin()), ids.begin() + job.end());
    const std::vector<std::string> lease = absl::StrSplit(words.at(5), ':');
    job.lease = LeaseId{std::stoull(lease.at(0)), std::stoull(lease.at(1))};
    job.decode = decode_;
    telling_->Expect(job.id, *job.lease);
    job.sampling.logprobs = static_cast<int32_t>(loaded_.model->config().vocab);
    return job;
  }

  // In the order of construction: what is first outlives the rest.
  const LoadedModel loaded_;
  const PeerId decode_;
  std::unique_ptr<CountingLinks> links_;  // null where there are no other GPUs
  std::unique_ptr<MessageEngine> engine_;
  std::unique_ptr<EdgeFactory> edges_;
  std::atomic<int64_t> handed_{0};
  std::unique_ptr<HandoffSender> handoff_;
  TellingHandoff* telling_ = nullptr;  // in it
  HoldingTrace trace_;
  std::map<uint64_t, Known> known_;  // by incarnation
  std::shared_ptr<Edge> predecessor_, successor_;
  std::unique_ptr<PrefillStage> stage_;
};

int Main(char** argv) {
  DType dtype = DType::kF32;
  for (const DType each : {DType::kBF16, DType::kF16}) {
    if (DTypeName(each) == argv[2]) dtype = each;
  }
  Worker worker(argv[1], dtype, std::stoll(argv[3]), FromArgument(argv[4]));
  Say("self " + ToArgument(worker.self()));
  std::string line;
  while (std::getline(std::cin, line) && worker.Do(absl::StrSplit(line, ' '))) {
  }
  return 0;
}

}  // namespace
}  // namespace runahead::testing

int main(int, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as the worker's main does, before CUDA reads it
  return runahead::testing::Main(argv);
}
