#include "tests/testing/chain_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/checks.h"
#include "tests/testing/await_change.h"
#include "tests/testing/exactness.h"
#include "tests/testing/host_copies.h"

namespace runahead {

Event KeepingHandoff::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  EventSource source;
  after.OnFire([this, slice, bytes, source](const absl::Status& status) {
    if (!status.ok()) {
      source.Fire(status);
      return;
    }
    {
      MutexLock lock(mu_);
      slices_[{slice.lease.number, slice.layer, slice.kind}][slice.begin] =
          std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size);
      if (blocked_.contains(slice.kind)) {
        held_.push_back({slice.lease, source});
        return;
      }
    }
    source.Fire(absl::OkStatus());
  });
  return next_ == nullptr ? source.event() : next_->Push(decode, slice, bytes, after);
}

void KeepingHandoff::Cancel(const LeaseId& lease) {
  if (next_ != nullptr) next_->Cancel(lease);
  std::vector<Held> cancelled;
  {
    MutexLock lock(mu_);
    std::vector<Held> kept;
    for (Held& held : held_) (held.lease == lease ? cancelled : kept).push_back(held);
    held_.swap(kept);
  }
  for (const Held& held : cancelled) held.source.Fire(absl::CancelledError("hand-off cancelled"));
}

void KeepingHandoff::Block(std::set<SliceKind> kinds) {
  MutexLock lock(mu_);
  blocked_ = std::move(kinds);
}

void KeepingHandoff::Unblock() {
  Refuse(absl::OkStatus());
}

void KeepingHandoff::Refuse(const absl::Status& status) {
  std::vector<Held> held;
  {
    MutexLock lock(mu_);
    blocked_.clear();
    held.swap(held_);
  }
  for (const Held& one : held) one.source.Fire(status);
}

int64_t KeepingHandoff::Bytes(SliceKind kind) const {
  MutexLock lock(mu_);
  int64_t bytes = 0;
  for (const auto& [key, slices] : slices_) {
    if (std::get<SliceKind>(key) != kind) continue;
    for (const auto& [begin, slice] : slices) bytes += static_cast<int64_t>(slice.size());
  }
  return bytes;
}

std::string KeepingHandoff::Layer(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end, int64_t row_bytes,
                                  SliceKind kind) const {
  MutexLock lock(mu_);
  std::string whole;
  const auto found = slices_.find({lease.number, layer, kind});
  if (found == slices_.end()) {
    if (begin == end) return whole;
    ADD_FAILURE() << "no slice of layer " << layer;
    return whole;
  }
  for (const auto& [token, bytes] : found->second) {
    EXPECT_EQ(static_cast<int64_t>(whole.size()), (token - begin) * row_bytes) << "layer " << layer;
    whole += bytes;
  }
  EXPECT_EQ(static_cast<int64_t>(whole.size()), (end - begin) * row_bytes) << "layer " << layer;
  return whole;
}

void NewsBoard::OnFirstToken(const PrefillJob& job, const Sampled& token, double, double) {
  MutexLock lock(mu_);
  EXPECT_FALSE(news_[job.id].first_token.has_value());
  EXPECT_FALSE(news_[job.id].done.has_value());
  news_[job.id].first_token = token;
  changed_.NotifyAll();
}

void NewsBoard::OnPromptScores(const PrefillJob& job, int64_t index, const std::vector<TokenLogprobPairs>& scores) {
  MutexLock lock(mu_);
  JobNews& news = news_[job.id];
  EXPECT_FALSE(news.done.has_value());
  EXPECT_EQ(job.tail(), news.first_token.has_value());
  EXPECT_EQ(index, job.begin() + 1 + static_cast<int64_t>(news.scores.size()));
  news.scores.insert(news.scores.end(), scores.begin(), scores.end());
  changed_.NotifyAll();
}

void NewsBoard::OnDone(const PrefillJob& job, const JobEnd& end, const JobTimes& times) {
  MutexLock lock(mu_);
  EXPECT_FALSE(news_[job.id].done.has_value());
  news_[job.id].done = end;
  news_[job.id].times = times;
  changed_.NotifyAll();
}

Sampled NewsBoard::AwaitFirstToken(JobId job) {
  MutexLock lock(mu_);
  testing::ChangeWait wait(absl::StrCat("job ", job, " has its first token, or has ended"));
  while (!news_[job].first_token.has_value() && !news_[job].done.has_value()) {
    if (!wait.Next(mu_, changed_)) return {};
  }
  if (!news_[job].first_token.has_value()) {
    ADD_FAILURE() << "job " << job << " ended without a token: " << news_[job].done->status;
    return {};
  }
  return *news_[job].first_token;
}

JobEnd NewsBoard::AwaitEnd(JobId job) {
  MutexLock lock(mu_);
  testing::ChangeWait wait(absl::StrCat("job ", job, " has ended"));
  while (!news_[job].done.has_value()) {
    if (!wait.Next(mu_, changed_)) return {.status = absl::DeadlineExceededError("it has not ended")};
  }
  return *news_[job].done;
}

bool NewsBoard::done(JobId job) const {
  MutexLock lock(mu_);
  const auto found = news_.find(job);
  return found != news_.end() && found->second.done.has_value();
}

std::vector<TokenLogprobPairs> NewsBoard::scores(JobId job) const {
  MutexLock lock(mu_);
  const auto found = news_.find(job);
  return found == news_.end() ? std::vector<TokenLogprobPairs>() : found->second.scores;
}

void NewsBoard::AwaitScores(JobId job, size_t count) {
  MutexLock lock(mu_);
  testing::ChangeWait wait(absl::StrCat("job ", job, " has ", count, " scores"));
  while (news_[job].scores.size() < count && wait.Next(mu_, changed_)) {
  }
}

JobTimes NewsBoard::times(JobId job) const {
  MutexLock lock(mu_);
  return news_.at(job).times;
}

void KeepingTrace::Add(JobId job, int64_t layer, TracePoint point) {
  MutexLock lock(mu_);
  entries_.push_back({job, layer, point});
  changed_.NotifyAll();
  testing::ChangeWait wait("the test releases what it held");
  while (held_ == point && held_job_.value_or(job) == job) {
    if (!wait.Next(mu_, changed_)) break;
  }
}

void KeepingTrace::HoldAt(TracePoint point, std::optional<JobId> job) {
  MutexLock lock(mu_);
  held_ = point;
  held_job_ = job;
  changed_.NotifyAll();
}

void KeepingTrace::Release() {
  MutexLock lock(mu_);
  held_.reset();
  changed_.NotifyAll();
}

size_t KeepingTrace::Await(JobId job, int64_t layer, TracePoint point) {
  MutexLock lock(mu_);
  testing::ChangeWait wait(absl::StrCat("job ", job, " is at point ", static_cast<int>(point), " of layer ", layer));
  for (size_t index = 0;; ++index) {
    while (index == entries_.size()) {
      if (!wait.Next(mu_, changed_)) return index;
    }
    const TraceEntry& entry = entries_[index];
    if (entry.job == job && entry.layer == layer && entry.point == point) return index;
  }
}

bool KeepingTrace::Has(JobId job, int64_t layer, TracePoint point) const {
  MutexLock lock(mu_);
  for (const TraceEntry& entry : entries_) {
    if (entry.job == job && entry.layer == layer && entry.point == point) return true;
  }
  return false;
}

namespace {

// Hands on to a sender that is somebody else's.
class BorrowedHandoff final : public HandoffSender {
 public:
  explicit BorrowedHandoff(HandoffSender& to) : to_(to) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override {
    return to_.Push(decode, slice, std::move(bytes), after);
  }
  void Cancel(const LeaseId& lease) override { to_.Cancel(lease); }

 private:
  HandoffSender& to_;
};

}  // namespace

TestChain::TestChain(const LoadedModel& loaded, int width, int64_t max_tokens, int64_t slots,
                     LoopbackNetwork::Delivery delivery)
    : network_(LoopbackNetwork::Create(delivery)) {
  std::vector<std::unique_ptr<EdgeFactory>> edges;
  for (int i = 0; i < width; ++i) edges.push_back(network_->Join(Peer(i)));
  Assemble(loaded, std::move(edges), max_tokens, slots);
}

TestChain::TestChain(const LoadedModel& loaded, std::vector<std::unique_ptr<EdgeFactory>> edges, int64_t max_tokens) {
  Assemble(loaded, std::move(edges), max_tokens, /*slots=*/0);
}

void TestChain::Assemble(const LoadedModel& loaded, std::vector<std::unique_ptr<EdgeFactory>> edges, int64_t max_tokens,
                         int64_t slots) {
  const int64_t row_bytes = loaded.model->kv_row_bytes();
  if (slots == 0) slots = std::max(loaded.model->config().layers, kMinLayerSlots);
  const bool staged = !loaded.device->host_reads_device_memory();
  if (staged) {
    staged_handoff_ = std::make_unique<HostCopies>(std::make_unique<BorrowedHandoff>(handoff_), *loaded.device);
  }
  HandoffSender& handoff = staged ? *staged_handoff_ : handoff_;
  for (auto& factory : edges) {
    members_.push_back(std::make_unique<ChainMember>());
    members_.back()->edges = std::move(factory);
  }
  for (int i = 0; i < width(); ++i) {
    ChainMember& member = *members_[i];
    if (i > 0) member.predecessor = *member.edges->Open(members_[i - 1]->edges->self());
    if (i + 1 < width()) member.successor = *member.edges->Open(members_[i + 1]->edges->self());
    PrefillStageOptions options;
    options.memory_bytes = static_cast<size_t>(2 * slots * max_tokens * row_bytes) + 7;  // any number of bytes does
    options.memory = *StageMemory::Allocate(options.memory_bytes, *loaded.device);
    if (!staged) std::memset(options.memory->data(), 0xff, options.memory->size());
    options.trace = &member.trace;
    options.on_memory = [&member](int64_t bytes) { member.memory = bytes; };
    options.on_pass = [&member](int64_t prompts) { member.passes.Add(prompts); };
    options.progress = member.progress;
    options.grammars = loaded.grammars;
    auto stage = PrefillStage::Create(options, *loaded.device, loaded.model, handoff, member.news);
    RUNAHEAD_CHECK(stage.ok());
    member.stage = *std::move(stage);
  }
}

TestChain::~TestChain() {
  // Stages wait for what their jobs have under way: let it all arrive or fail first.
  for (int i = 0; i < width(); ++i) members_[i]->stage->CancelAll(absl::CancelledError("the test is over"));
  handoff_.Unblock();
  if (network_ != nullptr) {
    network_->DeliverAll();
    for (int i = 0; i < width(); ++i) network_->Kill(Peer(i));
  }
  for (auto& member : members_) member->stage.reset();
}

PrefillJob TestChain::JobOf(JobId id, int first, int part, const std::vector<int64_t>& bounds,
                            const std::vector<int32_t>& ids, const SamplingOptions& sampling, bool with_lease,
                            absl::Time deadline, Schedule schedule) {
  PrefillJob job;
  job.id = id;
  job.schedule = schedule;
  job.bounds = bounds;
  job.part = part;
  if (part > 0) job.predecessor = members_[first + part]->predecessor;
  if (!job.tail()) job.successor = members_[first + part]->successor;
  job.ids.assign(ids.begin() + (job.tail() ? 0 : job.begin()), ids.begin() + job.end());
  if (with_lease) job.lease = Lease(id);
  job.decode = {"decode", 7};
  job.sampling = sampling;
  job.deadline = deadline;
  job.expected_s = static_cast<double>(job.tokens());
  job.allowance_s = job.expected_s / kOvertakenShare;
  return job;
}

void TestChain::Start(JobId id, int first, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids,
                      const SamplingOptions& sampling, bool with_lease, absl::Time deadline, Schedule schedule) {
  const int parts = static_cast<int>(bounds.size()) - 1;
  for (int part = 0; part < parts; ++part) {
    members_[first + part]->stage->Start(JobOf(id, first, part, bounds, ids, sampling, with_lease, deadline, schedule));
  }
}

::testing::AssertionResult TestChain::DeliverUntilDone(JobId job, const std::vector<int>& members) {
  return DeliverUntil(absl::StrCat("job ", job, " is done at members ", absl::StrJoin(members, ", ")), [&] {
    return std::all_of(members.begin(), members.end(), [&](int index) { return member(index).news.done(job); });
  });
}

size_t TestChain::live_edge_jobs() const {
  size_t live = 0;
  for (int i = 0; i + 1 < width(); ++i) {
    live += network_->live_jobs(Peer(i), Peer(i + 1)) + network_->live_jobs(Peer(i + 1), Peer(i));
  }
  return live;
}

SamplingOptions EveryLogprob(const LoadedModel& loaded) {
  SamplingOptions sampling;
  sampling.logprobs = static_cast<int32_t>(std::min<int64_t>(loaded.model->config().vocab, kMostTopK));
  return sampling;
}

WholeRun AwaitWhole(const LoadedModel& loaded, TestChain& chain, JobId job, int first,
                    const std::vector<int64_t>& bounds) {
  const int parts = static_cast<int>(bounds.size()) - 1;
  WholeRun whole;
  whole.token = chain.member(first + parts - 1).news.AwaitFirstToken(job);
  for (int part = 0; part < parts; ++part) {
    const absl::Status done = chain.member(first + part).news.AwaitDone(job);
    EXPECT_TRUE(done.ok()) << "part " << part << ": " << done;
  }
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    const int64_t window = loaded.model->attention(layer).window;
    whole.begins.push_back(std::max(bounds.front(), window == 0 ? 0 : bounds.back() + 1 - window));
    whole.kv.push_back(chain.handoff().Layer(TestChain::Lease(job), layer, whole.begins.back(), bounds.back(),
                                             loaded.model->kv_row_bytes()));
  }
  return whole;
}

WholeRun RunWhole(const LoadedModel& loaded, TestChain& chain, JobId job, const std::vector<int64_t>& bounds,
                  const std::vector<int32_t>& ids, Schedule schedule) {
  chain.Start(job, 0, bounds, ids, EveryLogprob(loaded), true, absl::InfiniteFuture(), schedule);
  return AwaitWhole(loaded, chain, job, 0, bounds);
}

void ExpectRun(const WholeRun& actual, const ExpectedRun& expected) {
  const std::vector<double>& logits = expected.logits.back();
  ExpectLogprobs(actual.token.logprobs, logits);
  TokenRule tokens(DType::kF32);
  tokens.Add(actual.token.id, TopOf(logits));
  ASSERT_EQ(actual.kv.size(), expected.kv.size());
  for (size_t layer = 0; layer < expected.kv.size(); ++layer) {
    SCOPED_TRACE(absl::StrCat("KV of layer ", layer));
    std::vector<float> kv(actual.kv[layer].size() / sizeof(float));
    std::memcpy(kv.data(), actual.kv[layer].data(), kv.size() * sizeof(float));
    ExpectRows(kv, absl::MakeConstSpan(expected.kv[layer]).subspan(actual.begins[layer] * 2 * expected.kv_dim),
               expected.kv_dim);
  }
}

}  // namespace runahead
