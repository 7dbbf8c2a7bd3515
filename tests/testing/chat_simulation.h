// Chats over decode workers that keep beginnings and one chain of prefill workers, simulated in seconds: how much of
// their prompts is known where they go. What workers keep, what the router remembers, and what it chooses by are the
// product's own. Left out: equal prompts that wait for each other, slots, and links that take time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/rest_of_prompt.h"
#include "scheduler/placement/continuation_choice.h"
#include "scheduler/placement/decode_choice.h"
#include "scheduler/placement/known_beginnings.h"
#include "tests/testing/chat_traffic.h"
#include "tests/testing/fake_device.h"
#include "worker/kv/beginnings.h"
#include "worker/kv/block_pool.h"

namespace runahead::testing {

// What a prompt takes on one prefill worker: near what one of a small model took on two threads (4,160 tokens: 1.8 s),
// and as long for what tokens attend to as for the tokens themselves at 4,600.
inline double PromptSeconds(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return 2.3e-4 * n + 5e-8 * n * n;
}
// What a token of an answer takes, in any company.
inline constexpr double kTokenSeconds = 0.05;

// A decode worker's store: blocks, and what is kept in them, as KvStore has both.
class SimulatedStore {
 public:
  explicit SimulatedStore(int64_t blocks)
      : pool_(*KvArena::Create(device_, MemoryKind::kHost, /*layers=*/1, blocks, /*row_bytes=*/1)), kept_({}) {}

  int64_t capacity_tokens() const { return pool_.arena().blocks() * kKvBlockTokens; }
  int64_t used_tokens() const { return pool_.used() * kKvBlockTokens; }

  // Of the prompt, all but its last token at most.
  int64_t Known(absl::Span<const int32_t> prompt) const {
    return kept_.Find("", prompt.first(prompt.size() - 1)).tokens;
  }

  // Blocks for so many tokens, which begin with what is known of the first `known` ids of the prompt; nothing where
  // they are not free.
  std::vector<int32_t> Take(absl::Span<const int32_t> prompt, int64_t known, int64_t tokens) {
    Beginnings::Hit hit;
    if (known > 0) hit = kept_.Find("", prompt.first(known));
    pool_.Share(hit.blocks);
    const int64_t whole = known / kKvBlockTokens, fresh = KvBlocksFor(tokens) - whole;
    std::vector<int32_t> blocks;
    if (fresh <= pool_.free()) {
      kept_.Use("", prompt.first(known));
      while (pool_.blank() < fresh) pool_.Forget(kept_.RemoveOldest()->block);
      blocks.assign(hit.blocks.begin(), hit.blocks.begin() + whole);
      const std::vector<int32_t> taken = *pool_.Take(fresh);
      blocks.insert(blocks.end(), taken.begin(), taken.end());
      hit.blocks.erase(hit.blocks.begin(), hit.blocks.begin() + whole);
    }
    pool_.Return(hit.blocks);
    return blocks;
  }
  void Keep(absl::Span<const int32_t> ids, const std::vector<int32_t>& blocks) {
    const Beginnings::Change change = kept_.Add("", ids, blocks, std::vector<bool>(ids.size()), 0);
    for (const int32_t block : change.kept) pool_.Keep(block);
    for (const int32_t block : change.forgotten) pool_.Forget(block);
  }
  void Return(const std::vector<int32_t>& blocks) { pool_.Return(blocks); }

 private:
  FakeDevice device_;
  BlockPool pool_;
  Beginnings kept_;
};

struct SimulationOptions {
  int decode_workers = 1;
  int64_t blocks = 1000;  // of each worker's store
  bool oracle = false;    // the choice knows all stores, and takes the worker with most of a prompt
};

class ChatSimulation {
 public:
  ChatSimulation(const SimulationOptions& options, const TrafficShape& shape, uint32_t seed)
      : options_(options), traffic_(shape, seed) {
    for (int i = 0; i < options.decode_workers; ++i) workers_.push_back(std::make_unique<Worker>(options.blocks));
    for (int chat = 0; chat < traffic_.chats(); ++chat) {
      At(traffic_.begins_s(chat), [this, chat] { Ask(chat); });
    }
  }

  struct Sums {
    int64_t requests = 0, prompt_tokens = 0;
    int64_t known_tokens = 0;  // of prompts, where these went
    int64_t gone = 0;          // requests whose worker had less than was believed
    double first_token_s = 0;  // from each request to its first token

    double known_share() const { return static_cast<double>(known_tokens) / static_cast<double>(prompt_tokens); }
  };
  // All chats to their ends; once.
  Sums Run() {
    while (!events_.empty()) {
      auto event = events_.extract(events_.begin());
      now_ = event.key();
      event.mapped()();
    }
    return sums_;
  }

 private:
  struct Worker {
    explicit Worker(int64_t blocks) : store(blocks) {}
    SimulatedStore store;
    int leases = 0;
    int64_t rests = 0;
  };
  struct Choice {
    int worker = -1;  // -1: none
    int64_t least = 0;
    double rest_s = 0;
    bool by_chain = false;
  };

  // Later, at that second.
  void At(double when, std::function<void()> what) { events_.emplace(when, std::move(what)); }
  static KnownBeginnings::Life LifeOf(int worker) { return {static_cast<uint64_t>(worker) + 1, 1}; }

  void Ask(int chat) {
    auto turn = std::make_shared<const ChatTraffic::Turn>(traffic_.Next(chat));
    const bool goes_on = traffic_.GoesOn(chat);
    Place(
        turn,
        [this, chat, goes_on] {
          if (goes_on) At(now_ + traffic_.PauseS(chat), [this, chat] { Ask(chat); });
        },
        now_);
  }

  // As Session does: behind what is known where that is soonest, else by a chain from the first token. Who finds no
  // memory comes again.
  void Place(const std::shared_ptr<const ChatTraffic::Turn>& turn, const std::function<void()>& ended, double asked) {
    const absl::Span<const int32_t> prompt = turn->prompt;
    const auto size = static_cast<int64_t>(prompt.size());
    const int64_t tokens = size + static_cast<int64_t>(turn->answer.size());
    std::vector<int32_t> blocks;
    Choice choice;
    int64_t known = 0;
    if (const absl::StatusOr<std::vector<size_t>> ranked = Rank(tokens); ranked.ok()) {
      choice = options_.oracle ? ChooseByTruth(prompt, *ranked) : Choose(prompt, *ranked);
      known = KnownAt(choice, prompt);
      if (known == 0) choice = {static_cast<int>(ranked->front()), 0, 0, /*by_chain=*/true};
      blocks = workers_[choice.worker]->store.Take(prompt, known, tokens);
    }
    if (blocks.empty()) {
      At(now_ + 0.5, [=, this] { Place(turn, ended, asked); });
      return;
    }
    ++sums_.requests;
    sums_.prompt_tokens += size;
    sums_.known_tokens += known;
    Compute(choice, known, turn, std::move(blocks), ended, asked);
  }

  // What the worker has of it, of which a chain gets no more than was chosen; 0 where that is less than was chosen.
  int64_t KnownAt(const Choice& choice, absl::Span<const int32_t> prompt) {
    if (choice.worker < 0) return 0;
    const int64_t known = workers_[choice.worker]->store.Known(prompt);
    if (known >= choice.least) return choice.by_chain ? choice.least : known;
    ++sums_.gone;
    index_.Gone(LifeOf(choice.worker), "", prompt, choice.least, lessons_);
    return 0;
  }

  absl::StatusOr<std::vector<size_t>> Rank(int64_t tokens) const {
    std::vector<DecodeView> views;
    for (const auto& worker : workers_) {
      DecodeView view;
      view.ready = true;
      view.capacity_tokens = worker->store.capacity_tokens();
      view.reserved_tokens = worker->store.used_tokens();
      view.leases = worker->leases;
      views.push_back(view);
    }
    return RankDecodeWorkers({.tokens = tokens}, views);
  }

  double ChainWaits() const { return std::max(0.0, chain_free_s_ - now_); }

  Choice Choose(absl::Span<const int32_t> prompt, const std::vector<size_t>& ranked) const {
    const auto size = static_cast<int64_t>(prompt.size());
    const double whole_s = ChainWaits() + PromptSeconds(size);
    Choice best;
    for (const size_t index : ranked) {
      const int64_t known = index_.Known(LifeOf(static_cast<int>(index)), "", prompt);
      if (known == 0) continue;
      const Worker& worker = *workers_[index];
      const auto take = [&](int64_t least, double rest_s, bool by_chain) {
        if (least < 1 || (best.worker >= 0 && rest_s >= best.rest_s)) return;
        best = {static_cast<int>(index), least, rest_s, by_chain};
      };
      const ContinuationOffer offer = OfferToContinue({.prompt_tokens = size,
                                                       .known_tokens = known,
                                                       .chain_s = whole_s,
                                                       .busy = worker.leases > 0,
                                                       .rests = worker.rests},
                                                      PromptSeconds);
      take(offer.least_known_tokens, offer.rest_s, false);
      const int64_t brought = TokensToBring(size, known);
      const double rest_s = ChainWaits() + SecondsOfChainRest(size, brought, PromptSeconds);
      const BehindOffer behind = OfferBehind(size, brought, whole_s, rest_s);
      take(behind.known_tokens, behind.rest_s * kChainBehindCosts, true);
    }
    return best;
  }

  Choice ChooseByTruth(absl::Span<const int32_t> prompt, const std::vector<size_t>& ranked) const {
    Choice best;
    for (const size_t index : ranked) {
      const int64_t known = workers_[index]->store.Known(prompt);
      if (known > best.least) best = {static_cast<int>(index), known, 0, false};
    }
    return best;
  }

  void Compute(const Choice& choice, int64_t known, const std::shared_ptr<const ChatTraffic::Turn>& turn,
               std::vector<int32_t> blocks, const std::function<void()>& ended, double asked) {
    const auto size = static_cast<int64_t>(turn->prompt.size());
    Worker& worker = *workers_[choice.worker];
    double first = now_;
    if (choice.by_chain) {
      chain_free_s_ = now_ + ChainWaits() + SecondsOfChainRest(size, known, PromptSeconds);
      first = chain_free_s_;
    } else {
      const ContinuationView view{.busy = worker.leases > 0, .rests = worker.rests};
      first = now_ + SecondsOfRest(size, known, PromptSeconds) * FactorBeside(view);
      ++worker.rests;
    }
    ++worker.leases;
    sums_.first_token_s += first - asked;
    const int at = choice.worker;
    const bool rest_there = !choice.by_chain;
    const double end = first + kTokenSeconds * static_cast<double>(turn->answer.size());
    At(first, [=, this] {
      workers_[at]->rests -= rest_there;
      Keep(at, turn->prompt, blocks);
    });
    At(end, [=, this, blocks = std::move(blocks)] {
      std::vector<int32_t> ids = turn->prompt;
      ids.insert(ids.end(), turn->answer.begin(), turn->answer.end() - 1);
      --workers_[at]->leases;
      Keep(at, ids, blocks);
      workers_[at]->store.Return(blocks);
      ended();
    });
  }

  void Keep(int at, absl::Span<const int32_t> ids, const std::vector<int32_t>& blocks) {
    SimulatedStore& store = workers_[at]->store;
    store.Keep(ids, blocks);
    if (!options_.oracle) index_.Learn(LifeOf(at), store.capacity_tokens(), "", ids, ++lessons_);
  }

  const SimulationOptions options_;
  ChatTraffic traffic_;
  std::multimap<double, std::function<void()>> events_;  // by when; of equal times the first that was added goes first
  std::vector<std::unique_ptr<Worker>> workers_;
  KnownBeginnings index_;
  uint64_t lessons_ = 0;
  double now_ = 0, chain_free_s_ = 0;
  Sums sums_;
};

}  // namespace runahead::testing
