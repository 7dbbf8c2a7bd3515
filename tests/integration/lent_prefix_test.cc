// Chains behind what a decode worker knows of a prompt, over real workers: the test gives the router's orders itself,
// so that it says which prompt goes which way.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "server/router/sequencer.h"
#include "server/router/worker_connection.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/await_change.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kLentBlock = 256;  // tokens of a block of the store
constexpr int kAnswer = 60;
constexpr int kAlternatives = 20;

// Keeps what the workers of a test say. Thread-safe.
class HandRouter : public WorkerConnection::Owner {
 public:
  absl::Status Admit(int, const v1::Capabilities&) override { return absl::OkStatus(); }
  void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> orders) override {
    MutexLock lock(mu_);
    const int index = worker->index;
    joined_[index] = {std::move(worker), std::move(orders)};
    changed_.NotifyAll();
  }
  void Interrupted(int, const absl::Status&) override {}
  void Resumed(int) override {}
  void Report(int index, const v1::ControlReport& report) override {
    MutexLock lock(mu_);
    if (report.has_first_token()) first_[report.first_token().job()] = report.first_token().token();
    if (report.has_done()) done_[{report.done().job(), index}] = report.done();
    changed_.NotifyAll();
  }
  void Loaded(int, const v1::DecodeLoad&, absl::Time) override {}
  uint64_t Lessons() override { return 0; }
  void Evicted(const LiveWorker&, absl::Span<const uint64_t>, uint64_t) override {}
  void Suspected(int, bool) override {}
  void Left(int, WorkerState, const absl::Status&) override {}

  struct Member {
    std::shared_ptr<const LiveWorker> worker;
    std::shared_ptr<CommandSink> orders;
  };
  Member AwaitJoined(int index) {
    MutexLock lock(mu_);
    Await("a worker has joined", [&]() RUNAHEAD_REQUIRES(mu_) { return joined_.contains(index); });
    return joined_[index];
  }
  v1::JobDone AwaitDone(uint64_t job, int index) {
    MutexLock lock(mu_);
    Await("a job has ended", [&]() RUNAHEAD_REQUIRES(mu_) { return done_.contains({job, index}); });
    return done_[{job, index}];
  }
  v1::SampledToken AwaitFirst(uint64_t job) {
    MutexLock lock(mu_);
    Await("the tail has drawn", [&]() RUNAHEAD_REQUIRES(mu_) { return first_.contains(job); });
    return first_[job];
  }

 private:
  template <typename Condition>
  void Await(std::string what, const Condition& condition) RUNAHEAD_REQUIRES(mu_) {
    testing::ChangeWait wait(std::move(what));
    while (!condition()) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::map<int, Member> joined_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<uint64_t, v1::SampledToken> first_ RUNAHEAD_GUARDED_BY(mu_);  // by job
  std::map<std::pair<uint64_t, int>, v1::JobDone> done_ RUNAHEAD_GUARDED_BY(mu_);
};

// A line of prefill workers and a decode worker behind them, or one worker that is both.
class HandMadeCluster {
 public:
  // `of_decode`: further arguments of the last worker.
  HandMadeCluster(const std::string& model, std::vector<std::string> roles,
                  const std::vector<std::string>& of_decode = {})
      : roles_(std::move(roles)) {
    for (size_t i = 0; i < roles_.size(); ++i) {
      std::vector<std::string> arguments = {
          RUNAHEAD_WORKER, "--role",    roles_[i], "--model", model, "--listen",    "127.0.0.1:0", "--metrics-listen",
          "127.0.0.1:0",   "--threads", "1",       "--dtype", "f32", "--step-rows", "off"};
      if (i + 1 == roles_.size()) arguments.insert(arguments.end(), of_decode.begin(), of_decode.end());
      workers_.push_back(std::make_unique<testing::ServingProcess>(arguments));
      RUNAHEAD_CHECK(!workers_[i]->address.empty());
      connections_.push_back(std::make_unique<WorkerConnection>(
          static_cast<int>(i), WorkerSpec{roles_[i], workers_[i]->address}, 42, router_, RealClock()));
      members_.push_back(router_.AwaitJoined(static_cast<int>(i)));
    }
    FormLine();
  }

  const v1::Capabilities& decode_capabilities() const { return members_.back().worker->capabilities; }
  double DecodeMetric(const std::string& line) const { return testing::MetricOf(workers_.back()->metrics, line); }

  absl::StatusOr<v1::ReserveReply> Reserve(const std::vector<int32_t>& ids, bool keep, int known) {
    v1::ReserveRequest request;
    request.set_prompt_tokens(static_cast<int32_t>(ids.size()));
    request.set_total_tokens(request.prompt_tokens() + kAnswer);
    request.set_not_kept(!keep);
    if (known > 0) {
      request.set_least_known_tokens(known);
      request.set_rest_handed(true);
      request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
    }
    grpc::ClientContext context;
    v1::ReserveReply reply;
    const grpc::Status status = members_.back().worker->decode->Reserve(&context, request, &reply);
    if (!status.ok()) return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    return reply;
  }

  // The answer of a prompt whose chain has these bounds. Of one that begins above 0 the tokens before are known.
  struct Outcome {
    v1::ReserveReply lease;
    v1::SampledToken first;
    std::vector<v1::SampledToken> tokens;  // behind the first one
    std::vector<int32_t> ids() const {
      std::vector<int32_t> all = {first.id()};
      for (const v1::SampledToken& token : tokens) all.push_back(token.id());
      return all;
    }
  };
  Outcome Run(const std::vector<int32_t>& ids, const std::vector<int32_t>& bounds, bool keep) {
    const absl::StatusOr<v1::ReserveReply> reserved = Reserve(ids, keep, bounds.front());
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    if (!reserved.ok()) return {};
    EXPECT_EQ(reserved->known_tokens(), bounds.front());
    const uint64_t job = Start(ids, bounds, *reserved);
    Outcome outcome{*reserved, router_.AwaitFirst(job), {}};
    for (int part = 0; part + 1 < static_cast<int>(bounds.size()); ++part) {
      const v1::JobDone done = router_.AwaitDone(job, part);
      EXPECT_EQ(done.code(), 0) << done.message();
    }
    v1::DecodeRequest request;
    *request.mutable_lease() = reserved->lease();
    request.mutable_prompt_ids()->Assign(ids.begin(), ids.end());
    request.set_first_token(outcome.first.id());
    request.set_max_tokens(kAnswer);
    *request.mutable_sampling() = Sampling();
    grpc::ClientContext context;
    const auto stream = members_.back().worker->decode->Generate(&context, request);
    for (v1::DecodeReply reply; stream->Read(&reply);) {
      outcome.tokens.insert(outcome.tokens.end(), reply.tokens().begin(), reply.tokens().end());
    }
    const grpc::Status end = stream->Finish();
    EXPECT_TRUE(end.ok()) << end.error_message();
    return outcome;
  }
  uint64_t Start(const std::vector<int32_t>& ids, const std::vector<int32_t>& bounds, const v1::ReserveReply& lease) {
    const uint64_t job = next_job_++;
    const int parts = static_cast<int>(bounds.size()) - 1;
    for (int part = 0; part < parts; ++part) {
      v1::ControlCommand command;
      v1::StartJob& start = *command.mutable_start();
      start.set_job(job);
      start.mutable_bounds()->Assign(bounds.begin(), bounds.end());
      start.set_part(part);
      const bool tail = part + 1 == parts;
      start.mutable_ids()->Assign(ids.begin() + (tail ? 0 : bounds[part]), ids.begin() + bounds[part + 1]);
      *start.mutable_lease() = lease.lease();
      start.set_x_tokens(lease.x_tokens());
      start.set_kv_from(lease.kv_from());
      *start.mutable_decode() = AddressOf(members_.size() - 1, 0);
      *start.mutable_sampling() = Sampling();
      if (part > 0) *start.mutable_predecessor() = LifeOf(part - 1);
      if (!tail) *start.mutable_successor() = LifeOf(part + 1);
      members_[part].orders->Write(std::move(command));
    }
    return job;
  }
  v1::JobDone AwaitDone(uint64_t job, int part) { return router_.AwaitDone(job, part); }
  void KillDecode() { workers_.back()->process.Signal(SIGKILL); }

 private:
  static v1::SamplingParams Sampling() {
    v1::SamplingParams sampling;
    sampling.set_seed(1);
    sampling.set_logprobs(kAlternatives);
    return sampling;
  }
  v1::PeerAddress AddressOf(size_t index, uint32_t generation) const {
    const v1::Capabilities& of = members_[index].worker->capabilities;
    v1::PeerAddress address;
    address.set_name(absl::StrCat("worker-", index));
    address.set_link_address(of.link_address());
    address.set_incarnation(of.incarnation());
    address.set_epoch(of.epoch());
    address.set_generation(generation);
    return address;
  }
  v1::WorkerLife LifeOf(size_t index) const {
    v1::WorkerLife life;
    life.set_incarnation(members_[index].worker->capabilities.incarnation());
    life.set_epoch(members_[index].worker->capabilities.epoch());
    return life;
  }
  void FormLine() {
    for (size_t i = 0; i + 1 < members_.size(); ++i) {
      v1::ControlCommand command;
      v1::FormLine& line = *command.mutable_form_line();
      if (i > 0) *line.mutable_predecessor() = AddressOf(i - 1, 1);
      if (i + 2 < members_.size()) *line.mutable_successor() = AddressOf(i + 1, 1);
      members_[i].orders->Write(std::move(command));
    }
  }

  const std::vector<std::string> roles_;
  HandRouter router_;
  std::vector<std::unique_ptr<testing::ServingProcess>> workers_;
  std::vector<std::unique_ptr<WorkerConnection>> connections_;
  std::vector<HandRouter::Member> members_;
  uint64_t next_job_ = 1;
};

void ExpectSame(const v1::SampledToken& actual, const v1::SampledToken& expected) {
  EXPECT_EQ(actual.id(), expected.id());
  EXPECT_EQ(actual.SerializeAsString(), expected.SerializeAsString()) << "to the bit";
}

std::vector<int32_t> Followed(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// The decode worker computes no rows of prompts: what ends there is kept for chains.
TEST(LentPrefix, ChainsBehindItGiveBitwiseWhatChainsFromTheFirstTokenGive) {
  HandMadeCluster cluster(WriteSynthetic(SmallModel(), "lent_prefix"), {"prefill", "prefill", "prefill", "decode"});
  EXPECT_FALSE(cluster.decode_capabilities().keeps_beginnings());
  ASSERT_TRUE(cluster.decode_capabilities().lends_beginnings());
  const int known = 2 * kLentBlock;
  const std::vector<int32_t> turn = SyntheticIds(known + 40, 71);
  const HandMadeCluster::Outcome first = cluster.Run(turn, {0, known, known + 40}, /*keep=*/true);
  const std::vector<int32_t> next = Followed(Followed(turn, first.ids()), SyntheticIds(90, 72));
  const auto end = static_cast<int32_t>(next.size());
  for (std::vector<int32_t> bounds : std::vector<std::vector<int32_t>>{{known, end}, {known, known + 100, end}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const HandMadeCluster::Outcome behind = cluster.Run(next, bounds, /*keep=*/false);
    bounds.insert(bounds.begin(), 0);
    const HandMadeCluster::Outcome whole = cluster.Run(next, bounds, /*keep=*/false);
    ExpectSame(behind.first, whole.first);
    ASSERT_EQ(behind.tokens.size(), whole.tokens.size());
    for (size_t i = 0; i < whole.tokens.size(); ++i) ExpectSame(behind.tokens[i], whole.tokens[i]);
  }
  // Of a width that the line has no chain from the first token for.
  const HandMadeCluster::Outcome wide = cluster.Run(next, {known, known + 50, known + 120, end}, /*keep=*/false);
  EXPECT_EQ(wide.tokens.size() + 1, static_cast<size_t>(kAnswer));
  EXPECT_EQ(cluster.DecodeMetric("runahead_kv_leases"), 0);
}

TEST(LentPrefix, OneProcessThatIsBothCopiesIt) {
  HandMadeCluster cluster(WriteSynthetic(SmallModel(), "lent_prefix_both"), {"both"});
  const std::vector<int32_t> turn = SyntheticIds(kLentBlock, 73);
  const HandMadeCluster::Outcome first = cluster.Run(turn, {0, kLentBlock}, /*keep=*/true);
  const std::vector<int32_t> next = Followed(Followed(turn, first.ids()), SyntheticIds(70, 74));
  const auto end = static_cast<int32_t>(next.size());
  const HandMadeCluster::Outcome behind = cluster.Run(next, {kLentBlock, end}, /*keep=*/false);
  const HandMadeCluster::Outcome whole = cluster.Run(next, {0, end}, /*keep=*/false);
  for (int i = 0; i < behind.first.logprobs().top_size(); ++i) {  // another cut adds up in another order
    EXPECT_NEAR(behind.first.logprobs().top(i).logprob(), whole.first.logprobs().top(i).logprob(), 1e-3);
  }
  EXPECT_EQ(behind.tokens.size() + 1, static_cast<size_t>(kAnswer));
}

// Turns behind all that is known of the turn before, its answer's last token left out, by chains of one and of two. The
// tokens are those of the plain pass. The lease of the last one.
v1::ReserveReply ExpectPlainTokensBehindATurn(HandMadeCluster& cluster, const std::string& model) {
  EXPECT_FALSE(cluster.decode_capabilities().keeps_beginnings());
  EXPECT_TRUE(cluster.decode_capabilities().lends_beginnings());
  const std::vector<int32_t> turn = SyntheticIds(2 * kLentBlock - 30, 77);
  const auto size = static_cast<int32_t>(turn.size());
  const HandMadeCluster::Outcome first = cluster.Run(turn, {0, 200, size}, /*keep=*/true);
  const int32_t known = size + kAnswer - 1;
  const std::vector<int32_t> next = Followed(Followed(turn, first.ids()), SyntheticIds(90, 78));
  const auto end = static_cast<int32_t>(next.size());
  const LoadedModel loaded = LoadForTest(model, DType::kF32, 1);
  SequenceRunner plain(loaded, end + kAnswer);
  std::vector<Top> expected = {TopOf(plain.Append(next, false, false)[0])};
  while (static_cast<int>(expected.size()) < kAnswer) {
    expected.push_back(TopOf(plain.Append({expected.back().id}, true, true)[0]));
  }
  v1::ReserveReply lease;
  for (const std::vector<int32_t>& bounds : std::vector<std::vector<int32_t>>{{known, end}, {known, known + 50, end}}) {
    const HandMadeCluster::Outcome behind = cluster.Run(next, bounds, /*keep=*/false);
    lease = behind.lease;
    EXPECT_EQ(lease.known_output_tokens(), kAnswer - 1);
    const std::vector<int32_t> ids = behind.ids();
    EXPECT_EQ(ids.size(), expected.size());
    TokenRule rule(DType::kF32);
    for (size_t i = 0; i < ids.size() && rule.different() == 0; ++i) rule.Add(ids[i], expected[i]);
  }
  EXPECT_EQ(cluster.DecodeMetric("runahead_kv_leases"), 0);
  return lease;
}

// KVPR with X: of the first turn's beginning X came instead of KV. Its first step made KV of it, which a chain gets,
// and X of the second turn is what is there and what the chain makes.
TEST(LentPrefix, ADecodeWorkerThatRecomputesKeepsKvAndX) {
  SyntheticModel mha = SmallModel();
  mha.kv_heads = mha.heads;
  const std::string model = WriteSynthetic(mha, "lent_prefix_x");
  HandMadeCluster cluster(
      model, {"prefill", "prefill", "decode"},
      {"--emulated-link-gbps", "50", "--kv-device-budget", "1MiB", "--recompute", "128", "--host-lane", "off"});
  const v1::ReserveReply lease = ExpectPlainTokensBehindATurn(cluster, model);
  EXPECT_EQ(lease.x_tokens(), lease.known_tokens() + 1 + 90) << "all of the prompt";
  EXPECT_EQ(lease.kv_from(), 0);
  EXPECT_GE(cluster.DecodeMetric("runahead_kvpr_lane_tokens_total{lane=\"recomputed\"}"), 3 * 128 * (kAnswer - 2))
      << "of the first turn, and from X of what was known twice";
}

// Of the layers with a window the store has what the answer of the turn before saw.
TEST(LentPrefix, OfAModelWithWindowsAChainGoesOnBehindATurn) {
  SyntheticModel windowed = SmallModel();
  windowed.family = SyntheticFamily::kGemma2;
  windowed.window = 100;
  const std::string model = WriteSynthetic(windowed, "lent_prefix_windowed");
  HandMadeCluster cluster(model, {"prefill", "prefill", "decode"});
  EXPECT_EQ(cluster.decode_capabilities().window(), 100);
  ExpectPlainTokensBehindATurn(cluster, model);
}

// log softmax of a row of logits at `id`.
double LogprobOf(const std::vector<float>& logits, int32_t id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(id)] - largest - std::log(sum);
}

// The first token's logits of a pass over `next`, of whose first `known` tokens KV is what is left of the exact one
// once it was quantised, by the tests' own codec.
std::vector<float> BehindQuantised(const LoadedModel& loaded, const std::vector<int32_t>& next, int64_t known,
                                   const KvQuant& quant) {
  SequenceRunner runner(loaded, static_cast<int64_t>(next.size()));
  runner.Append({next.begin(), next.begin() + known}, false, false);
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    std::vector<float> rows = runner.Kv(layer);
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(quant.group)) {
      const ReferenceGroup group = QuantizeReference(rows.data() + i, quant);
      std::copy(group.values.begin(), group.values.end(), rows.begin() + static_cast<std::ptrdiff_t>(i));
    }
    runner.SetKv(layer, rows);
  }
  return runner.Append({next.begin() + known, next.end()}, false, false)[0];
}

// Whose workers, in how many bits, and with X beside it, as it comes: in fewer bits steps would make other KV from it.
struct CodedKv {
  std::string name;
  std::vector<std::string> roles;
  int bits = 4;
  bool with_x = false;
};

class LentCodes : public ::testing::TestWithParam<CodedKv> {
 protected:
  static std::vector<std::string> OfDecode() {
    std::vector<std::string> arguments = {"--keep-beginnings", "on", "--kv-bits", absl::StrCat(GetParam().bits)};
    if (!GetParam().with_x) return arguments;
    for (const char* const more : {"--x-bits", "16", "--emulated-link-gbps", "50", "--kv-device-budget", "2MiB",
                                   "--recompute", "128", "--host-lane", "off"}) {
      arguments.emplace_back(more);
    }
    return arguments;
  }
  // From `begin` on, in as many parts as there are prefill workers.
  static std::vector<int32_t> Bounds(int32_t begin, int32_t end) {
    if (GetParam().roles.size() == 1) return {begin, end};
    return {begin, begin + 50, end};
  }
};

// A chain computes over what the codes stand for, to the precision of f32, which is far from what it computes over KV
// that was never quantised. The last block is begun.
TEST_P(LentCodes, AChainBehindThemAttendsToWhatTheyStandFor) {
  SyntheticModel small = SmallModel();
  if (GetParam().with_x) small.kv_heads = small.heads;
  const std::string model = WriteSynthetic(small, "lent_codes");
  HandMadeCluster cluster(model, GetParam().roles, OfDecode());
  EXPECT_FALSE(cluster.decode_capabilities().keeps_beginnings());
  ASSERT_TRUE(cluster.decode_capabilities().lends_beginnings());
  const std::vector<int32_t> turn = SyntheticIds(2 * kLentBlock + 40, 79);
  const auto known = static_cast<int32_t>(turn.size());
  cluster.Run(turn, Bounds(0, known), /*keep=*/true);
  const std::vector<int32_t> next = Followed(turn, SyntheticIds(90, 80));
  const auto end = static_cast<int32_t>(next.size());
  const HandMadeCluster::Outcome behind = cluster.Run(next, Bounds(known, end), /*keep=*/false);
  const LoadedModel loaded = LoadForTest(model, DType::kF32, 1);
  const std::vector<float> expected = BehindQuantised(loaded, next, known, {.bits = GetParam().bits, .group = 32});
  const std::vector<float> exact = SequenceRunner(loaded, end).Append(next, false, false)[0];
  double off = 0, from_exact = 0;
  ASSERT_GT(behind.first.logprobs().top_size(), kAlternatives - 1);
  for (const v1::TokenLogprob& top : behind.first.logprobs().top()) {
    off = std::max(off, std::abs(top.logprob() - LogprobOf(expected, top.id())));
    from_exact = std::max(from_exact, std::abs(top.logprob() - LogprobOf(exact, top.id())));
  }
  EXPECT_LT(off, 1e-4);
  EXPECT_GT(from_exact, GetParam().bits == 4 ? 1e-2 : 1e-3);
  EXPECT_EQ(behind.lease.x_tokens(), GetParam().with_x ? end : 0);
  EXPECT_EQ(behind.tokens.size() + 1, static_cast<size_t>(kAnswer));
  EXPECT_EQ(cluster.DecodeMetric("runahead_kv_leases"), 0);
}

INSTANTIATE_TEST_SUITE_P(Workers, LentCodes,
                         ::testing::Values(CodedKv{"AsChain", {"prefill", "prefill", "decode"}},
                                           CodedKv{"Both", {"both"}},
                                           CodedKv{"InEightBits", {"prefill", "prefill", "decode"}, 8},
                                           CodedKv{"WithX", {"prefill", "prefill", "decode"}, 8, true}),
                         [](const auto& kv) { return kv.param.name; });

TEST(LentPrefix, ADecodeWorkerWithKvInFewerBitsLendsNothingByItself) {
  HandMadeCluster cluster(WriteSynthetic(SmallModel(), "lent_no_codes"), {"prefill", "decode"}, {"--kv-bits", "8"});
  EXPECT_FALSE(cluster.decode_capabilities().lends_beginnings());
}

TEST(LentPrefix, ADecodeWorkerThatDiesEndsTheChainByItsOwnFault) {
  HandMadeCluster cluster(WriteSynthetic(SmallModel(), "lent_prefix_dies"), {"prefill", "decode"});
  const std::vector<int32_t> turn = SyntheticIds(kLentBlock, 75);
  const HandMadeCluster::Outcome first = cluster.Run(turn, {0, kLentBlock}, /*keep=*/true);
  const std::vector<int32_t> next = Followed(Followed(turn, first.ids()), SyntheticIds(70, 76));
  const absl::StatusOr<v1::ReserveReply> reserved = cluster.Reserve(next, /*keep=*/false, kLentBlock);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  cluster.KillDecode();
  const uint64_t job = cluster.Start(next, {kLentBlock, static_cast<int32_t>(next.size())}, *reserved);
  const v1::JobDone done = cluster.AwaitDone(job, 0);
  EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kUnavailable)) << done.message();
  EXPECT_EQ(done.cause(), v1::JOB_CAUSE_DECODE);
}

}  // namespace
}  // namespace runahead
