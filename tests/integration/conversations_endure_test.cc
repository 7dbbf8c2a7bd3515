// Mixed chats for as long as is asked for, over workers whose stores hold a tenth of them and that are killed and
// stopped meanwhile: each answer is a cold run's, no request fails, and in the end nothing is held.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "tests/integration/conversation.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/watched_process.h"
#include "tests/testing/await_change.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/patience.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/small_family.h"

namespace runahead {
namespace {

using testing::Conversation;
using testing::TurnKind;

constexpr int kChats = 64, kUsers = 4, kAnswer = 16;
constexpr TurnKind kTurns[] = {TurnKind::kAppend, TurnKind::kAppend, TurnKind::kEdit,  TurnKind::kAppend,
                               TurnKind::kBranch, TurnKind::kAgain,  TurnKind::kAppend};
// Two prefill and two decode workers; this one is only stopped, for its memory to be watched.
constexpr char kLives[] = "decode-1";
const std::vector<std::string> kKilled = {"prefill-0", "prefill-1", "decode-0"};

// From this margin on tokens of f32 agree.
constexpr float kLeastMargin = 1e-3f;

// Over the second half. 0.1 MiB was seen in half a minute, of 7,000 answers; ends of heaps come and go (MemoryReturn).
constexpr int64_t kMayGrow = 4 * testing::kMiB;

// RUNAHEAD_ENDURE_SECONDS of the environment; absent: a minute.
absl::Duration Endurance() {
  const char* const text = std::getenv("RUNAHEAD_ENDURE_SECONDS");
  int64_t seconds = 60;
  if (text != nullptr) RUNAHEAD_CHECK(absl::SimpleAtoi(text, &seconds) && seconds > 0);
  return absl::Seconds(seconds);
}

// Of chats of up to 512 tokens, two blocks of KV in f32 each, a tenth.
std::string TenthOfChats(const SyntheticModel& model) {
  const int64_t block = 256 * model.layers * 2 * model.kv_heads * model.head_dim * 4;
  return absl::StrCat(kChats * 2 / 10 * block);
}

// Slower than any machine, so that who knows a beginning is sooner; of long rests a chain of two is.
std::string WriteTable() {
  std::string path = absl::StrCat(::testing::TempDir(), "/conversations_endure.yaml");
  std::ofstream table(path);
  table << "version: 1\nschedule: kvr\nentries:\n";
  for (const int tokens : {16, 4096}) {
    table << absl::StrCat("  - {width: 1, tokens: ", tokens, ", fractions: [1], predicted_ttft_s: ", 2e-3 * tokens,
                          "}\n  - {width: 2, tokens: ", tokens,
                          ", fractions: [0.56, 0.44], predicted_ttft_s: ", 0.01 + 1.4e-3 * tokens, "}\n");
  }
  return path;
}

std::vector<std::string> Arguments(const SyntheticModel& model) {
  return {"--prefill", "2", "--decode", "2",          "--dtype",     "f32",
          "--threads", "1", "--table",  WriteTable(), "--kv-memory", TenthOfChats(model)};
}

// A prompt, and the tokens of a cold run, as far as they are certain in f32.
struct Turn {
  v1::GenerateRequest request;
  std::vector<int32_t> ids;
};

class ConversationsEndure : public ::testing::Test {
 protected:
  ConversationsEndure()
      : cluster_(WriteSynthetic(SmallModelOf(SyntheticFamily::kLlama, 0), "conversations_endure"),
                 Arguments(SmallModelOf(SyntheticFamily::kLlama, 0))) {
    AwaitAllReady();
    std::vector<std::thread> writers;
    for (int user = 0; user < kUsers; ++user) writers.emplace_back([this, user] { WriteChats(user); });
    for (std::thread& writer : writers) writer.join();
  }

  // Each user's chats, on a quiet cluster that keeps nothing of them.
  void WriteChats(int user) {
    const std::unique_ptr<v1::Inference::Stub> stub = OwnStub(cluster_.router());
    for (int chat = user; chat < kChats; chat += kUsers) {
      Conversation conversation(1000 + chat, chat % 8);
      for (const TurnKind kind : kTurns) {
        Turn turn{Uncached(RequestOf(conversation.Ask(kind), kAnswer)), {}};
        turn.request.mutable_sampling()->set_logprobs(2);
        const Answer cold = GenerateOver(*stub, turn.request);
        ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
        ASSERT_EQ(cold.ids.size(), size_t{kAnswer});
        for (size_t i = 0; i < cold.ids.size(); ++i) {
          const v1::TokenLogprobs& token = cold.logprobs[i];
          if (token.top(0).logprob() - token.top(1).logprob() < kLeastMargin) break;
          turn.ids.push_back(cold.ids[i]);
        }
        turn.request.set_no_cache(false);
        chats_[chat].push_back(std::move(turn));
        conversation.Answer(cold.ids);
      }
    }
  }

  // Chats in any order, each chat's turns in theirs, and from the first one again, until all are told to end.
  void Chat(int user) {
    const std::unique_ptr<v1::Inference::Stub> stub = OwnStub(cluster_.router());
    std::mt19937 random(user);
    std::vector<size_t> next(kChats, 0);
    while (!over_) {
      const size_t chat = user + kUsers * (random() % (kChats / kUsers));
      const Turn& turn = chats_[chat][next[chat]++ % chats_[chat].size()];
      const Answer answer = GenerateOver(*stub, turn.request);
      SCOPED_TRACE(absl::StrCat("chat ", chat, ", turn ", next[chat] - 1, ": ", answer.finished.ShortDebugString()));
      EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_GE(answer.ids.size(), turn.ids.size());
      EXPECT_TRUE(std::equal(turn.ids.begin(), turn.ids.begin() + std::min(turn.ids.size(), answer.ids.size()),
                             answer.ids.begin()));
      MutexLock lock(mu_);
      ++answers_;
      known_ += answer.finished.usage().cached_prompt_tokens() > 0;
      failovers_ += answer.finished.failovers();
      changed_.NotifyAll();
    }
  }

  // Until there were so many answers more than now.
  void AwaitAnswers(int64_t more) {
    MutexLock lock(mu_);
    const int64_t until = answers_ + more;
    testing::ChangeWait wait("chats go on", testing::Patience(LocalCluster::kPatience));
    while (answers_ < until) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

  void AwaitAllReady() {
    for (const char* role : {"prefill", "decode"}) {
      const std::string ready = absl::StrCat("runahead_workers{role=\"", role, "\",state=\"ready\"}");
      EXPECT_TRUE(Eventually([&] { return cluster_.Metric("router", ready) == 2; })) << role;
    }
  }

  // One fault at a time, so that somebody is there always.
  void Fault(std::mt19937& random) {
    if (random() % 3 == 0) {
      const std::string& name = kKilled[random() % kKilled.size()];
      const pid_t pid = cluster_.pid(name);
      kill(pid, SIGKILL);
      EXPECT_TRUE(Eventually([&] { return cluster_.pid(name) != pid; })) << name;
      ++kills_;
      return;
    }
    const size_t which = random() % (kKilled.size() + 1);
    const std::string name = which < kKilled.size() ? kKilled[which] : kLives;
    // Half of them are given up meanwhile, and come back.
    PauseFor(absl::Milliseconds(random() % 2 == 0 ? 500 : 4500), cluster_.pid(name));
    ++pauses_;
  }

  // What a process has for itself, in each quarter of the time at the most.
  struct Memory {
    std::string name;
    pid_t pid;
    int64_t most[4] = {};
  };
  static void Look(Memory& memory, double share) {
    int64_t& most = memory.most[std::min(3, static_cast<int>(4 * share))];
    most = std::max(most, testing::StatusBytes(memory.pid, "RssAnon"));
  }
  void ExpectFlat(const Memory& memory) {
    EXPECT_EQ(memory.pid, cluster_.pid(memory.name)) << "it has lived";
    std::cerr << memory.name << ":";
    for (const int64_t most : memory.most) std::cerr << " " << most / 1024;
    std::cerr << " KiB at the most in each quarter\n";
    if (testing::kSanitized) return;
    EXPECT_LT(memory.most[3] - memory.most[1], kMayGrow) << memory.name;
  }

  std::vector<Turn> chats_[kChats];
  LocalCluster cluster_;
  std::atomic<bool> over_ = false;
  int kills_ = 0, pauses_ = 0;
  Mutex mu_;
  CondVar changed_;
  int64_t answers_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t known_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of these, those whose prompt began with what was known
  int64_t failovers_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

TEST_F(ConversationsEndure, WorkersThatAreKilledAndStoppedChangeNoTokenAndLeaveNothing) {
  ASSERT_FALSE(HasFailure());
  const absl::Duration endurance = Endurance();
  Memory memory[] = {{"router", cluster_.pid("router")}, {kLives, cluster_.pid(kLives)}};
  std::vector<std::thread> users;
  for (int user = 0; user < kUsers; ++user) users.emplace_back([this, user] { Chat(user); });
  std::mt19937 random(7);
  const absl::Time begin = absl::Now();
  for (absl::Duration gone; (gone = absl::Now() - begin) < endurance && !HasFailure();) {
    AwaitAnswers(4 * kUsers);
    for (Memory& of : memory) Look(of, absl::FDivDuration(gone, endurance));
    Fault(random);
    AwaitAllReady();
  }
  over_ = true;
  for (std::thread& user : users) user.join();
  for (const Memory& of : memory) ExpectFlat(of);
  EXPECT_GT(cluster_.Sum(kLives, "runahead_kv_kept_evicted_bytes_total"), 0) << "its store holds a part of the chats";
  cluster_.ExpectAllFree();
  MutexLock lock(mu_);
  EXPECT_GT(known_, 0);
  std::cerr << answers_ << " answers, " << known_ << " behind what was known, " << failovers_ << " failovers; "
            << kills_ << " kills, " << pauses_ << " pauses\n";
}

}  // namespace
}  // namespace runahead
