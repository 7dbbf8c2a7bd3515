// What a KvStore has, keeps and gives up, in plain lists: who asks it what comes next and then the store can tell
// whether that did as docs/prefix-cache.md says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/placement/beginning_hash.h"
#include "worker/kv/block_pool.h"
#include "worker/kv/lease_request.h"

namespace runahead {

// Of a store of fewer than 64 blocks, without windows, none of whose leases expires. Blocks are numbers that are never
// used again.
class KeptModel {
 public:
  struct Lease {
    std::string salt;
    int64_t prompt = 0, counted = 0, promised = 0;
    std::vector<int> blocks = {};
    std::optional<int> copied_from = {};
    std::vector<bool> known_answers = {};  // of each token that it began with
    bool grows = false, not_kept = false, has_x = false, open = false, dead = false;
  };

  explicit KeptModel(int64_t blocks) : capacity_(blocks) {}

  int64_t used() const {
    return Count([](const Uses& of) { return of.leases > 0; });
  }
  int64_t kept() const {
    return Count([](const Uses& of) { return of.leases == 0; });
  }
  int64_t evicted() const { return evicted_; }
  // The hashes of what was evicted since the last call and is not kept now.
  std::vector<uint64_t> TakeNews() { return std::exchange(news_, {}); }
  int64_t promised() const { return std::min(used() + promised_, capacity_); }

  // What the store says to a request whose fields go together. `lease` is what it gives with OK.
  absl::StatusCode Reserve(const LeaseRequest& request, Lease& lease) {
    const int64_t expected = request.expected_tokens.value_or(request.total_tokens);
    lease = {std::string(request.salt), request.prompt_tokens, expected};
    lease.grows = request.expected_tokens.has_value();
    lease.not_kept = request.not_kept || request.arriving_tokens.has_value();
    lease.has_x = request.with_x;
    const int64_t blocks = KvBlocksFor(expected);
    const absl::StatusCode code =
        request.least_known_tokens ? Begin(request, blocks, lease) : RoomFor(blocks, lease.grows, {});
    if (code != absl::StatusCode::kOk) return code;
    const int64_t comes = request.arriving_tokens.value_or(request.prompt_tokens) + kFirstPortion;
    Take(lease, KvBlocksFor(lease.grows ? std::min(expected, comes) : expected));
    growing_ += lease.grows ? 1 : 0;
    Promise(lease, expected);
    return code;
  }
  bool Grow(Lease& lease, int64_t tokens) {
    const int64_t blocks = KvBlocksFor(tokens);
    if (blocks - Size(lease) > capacity_ - used()) return false;
    Take(lease, blocks);
    Promise(lease, tokens);
    return true;
  }
  void Park(Lease& lease, int64_t tokens) {
    ReturnAll(lease);
    lease.known_answers.clear();
    Promise(lease, tokens);
  }
  void EndCopies(Lease& lease) {
    if (lease.copied_from) Return({*std::exchange(lease.copied_from, std::nullopt)});
  }
  void Release(Lease& lease) {
    if (lease.dead) return;
    lease.dead = true;
    growing_ -= lease.grows ? 1 : 0;
    Promise(lease, 0);
    if (!lease.open) ReturnAll(lease);
  }
  void Close(Lease& lease) {
    lease.open = false;
    Release(lease);
    ReturnAll(lease);
  }
  // The blocks of the first tokens that it began with, once more in use until Return.
  std::vector<int> Lend(const Lease& lease, int64_t tokens) {
    std::vector<int> blocks(lease.blocks.begin(), lease.blocks.begin() + KvBlocksFor(tokens));
    const auto known = static_cast<int64_t>(lease.known_answers.size());
    if (lease.copied_from && tokens > known / kKvBlockTokens * kKvBlockTokens) blocks.back() = *lease.copied_from;
    for (const int block : blocks) ++uses_[block].leases;
    return blocks;
  }
  void Return(const std::vector<int>& blocks) {
    for (const int block : blocks) {
      --uses_[block].leases;
      EraseIfBlank(block);
    }
  }

  void Keep(const Lease& lease, absl::Span<const int32_t> ids) {
    if (lease.dead || lease.not_kept || lease.blocks.empty()) return;
    const auto size = static_cast<int64_t>(ids.size());
    for (int64_t begin = 0; begin < size; begin += kKvBlockTokens) {
      const int64_t end = std::min(begin + kKvBlockTokens, size);
      Chunk own{lease.salt, {ids.begin(), ids.begin() + end}, lease.blocks[begin / kKvBlockTokens], {}, lease.has_x};
      for (int64_t t = begin; t < end; ++t) {
        const bool was_known = t < static_cast<int64_t>(lease.known_answers.size());
        own.of_answer.push_back(was_known ? lease.known_answers[t] : t >= lease.prompt);
      }
      KeepChunk(std::move(own));
    }
  }
  void Forget(std::optional<absl::string_view> salt) {
    for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
      const auto next = std::next(chunk);
      if (!salt || chunk->salt == *salt) Drop(chunk);
      chunk = next;
    }
  }

 private:
  struct Uses {
    int leases = 0, keeps = 0;
  };
  // At most a block of a sequence.
  struct Chunk {
    std::string salt;
    std::vector<int32_t> ids;  // of the sequence, up to the chunk's end
    int block = 0;
    std::vector<bool> of_answer;  // of its own
    bool has_x = false;

    int64_t size() const { return static_cast<int64_t>(ids.size()); }
    int64_t begin() const { return (size() - 1) / kKvBlockTokens * kKvBlockTokens; }
  };
  using Chunks = std::list<Chunk>;  // that which was used longest ago first

  static int64_t Common(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
    const size_t most = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  }
  static int64_t Size(const Lease& lease) { return static_cast<int64_t>(lease.blocks.size()); }
  template <typename Which>
  int64_t Count(const Which& which) const {
    return std::count_if(uses_.begin(), uses_.end(), [&](const auto& of) { return which(of.second); });
  }
  void EraseIfBlank(int block) {
    if (uses_[block].leases == 0 && uses_[block].keeps == 0) uses_.erase(block);
  }

  // For blocks of a new lease which has `shared` already. A block is left to those that grow, for each other one.
  absl::StatusCode RoomFor(int64_t blocks, bool grows, const std::vector<int>& shared) const {
    const int64_t taken =
        std::count_if(shared.begin(), shared.end(), [&](int block) { return uses_.at(block).leases == 0; });
    const int64_t room = capacity_ - used() - taken - promised_ - (grows && growing_ > 0 ? 1 : 0);
    return blocks <= room ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted;
  }
  void Promise(Lease& lease, int64_t tokens) {
    promised_ -= lease.promised;
    lease.counted = std::max(lease.counted, tokens);
    lease.promised = lease.dead ? 0 : std::max<int64_t>(0, KvBlocksFor(lease.counted) - Size(lease));
    promised_ += lease.promised;
  }
  void Take(Lease& lease, int64_t blocks) {
    const int64_t fresh = blocks - Size(lease);
    const auto blank = [&] { return capacity_ - static_cast<int64_t>(uses_.size()); };
    const int64_t before = blank();
    while (blank() < fresh) news_.push_back(DropOldest());
    evicted_ += blank() - before;
    for (int64_t i = 0; i < fresh; ++i) {
      uses_[next_].leases = 1;
      lease.blocks.push_back(next_++);
    }
  }
  void ReturnAll(Lease& lease) {
    EndCopies(lease);
    Return(std::exchange(lease.blocks, {}));
  }

  // Of chunks that begin behind `at` tokens as the sequence does, the one that has most in common with it; of several
  // the one whose ids come first.
  Chunks::iterator Next(absl::string_view salt, absl::Span<const int32_t> ids, int64_t at) {
    auto best = chunks_.end();
    int64_t most = at;
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      if (chunk->salt != salt || chunk->begin() != at) continue;
      const int64_t common = Common(chunk->ids, ids);
      if (common < most || common == at || (common == most && !(chunk->ids < best->ids))) continue;
      best = chunk;
      most = common;
    }
    return best;
  }
  void Use(Chunks::iterator chunk) { chunks_.splice(chunks_.end(), chunks_, chunk); }

  // With as many known tokens as there are and memory is for, at least those that are asked for.
  absl::StatusCode Begin(const LeaseRequest& request, int64_t blocks, Lease& lease) {
    const int64_t least = *request.least_known_tokens;
    absl::Span<const int32_t> ids = request.prompt_ids.first(request.rest_handed ? least : request.prompt_tokens - 1);
    while (true) {
      std::vector<Chunks::iterator> found;
      std::vector<int> shared;
      int64_t known = 0;
      for (bool whole = true; whole && known < static_cast<int64_t>(ids.size());) {
        const auto next = Next(request.salt, ids, known);
        if (next == chunks_.end()) break;
        found.push_back(next);
        shared.push_back(next->block);
        known = Common(next->ids, ids);
        whole = known % kKvBlockTokens == 0;
      }
      if (known < least) return absl::StatusCode::kNotFound;
      const int64_t whole = known / kKvBlockTokens;
      if (RoomFor(blocks - whole, lease.grows, shared) == absl::StatusCode::kOk) {
        Share(found, known, lease);
        return absl::StatusCode::kOk;
      }
      if (known == whole * kKvBlockTokens) return absl::StatusCode::kResourceExhausted;
      if (whole * kKvBlockTokens < least) {
        return blocks < capacity_ ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOutOfRange;
      }
      ids = ids.first(whole * kKvBlockTokens);  // without a copy
    }
  }
  void Share(const std::vector<Chunks::iterator>& found, int64_t known, Lease& lease) {
    for (const auto& chunk : found) {
      ++uses_[chunk->block].leases;
      const bool whole = chunk->begin() + kKvBlockTokens <= known;
      whole ? lease.blocks.push_back(chunk->block) : (void)(lease.copied_from = chunk->block);
      const int64_t own = std::min(known - chunk->begin(), kKvBlockTokens);
      lease.known_answers.insert(lease.known_answers.end(), chunk->of_answer.begin(), chunk->of_answer.begin() + own);
      lease.has_x = lease.has_x && chunk->has_x;
      Use(chunk);
    }
  }

  void KeepChunk(Chunk own) {
    const auto as_much = Next(own.salt, own.ids, own.begin());
    if (as_much != chunks_.end() && Common(as_much->ids, own.ids) == own.size()) {
      const bool whole = own.size() % kKvBlockTokens == 0;
      if (whole && own.has_x && !as_much->has_x) {
        ++uses_[own.block].keeps;
        Unkeep(std::exchange(as_much->block, own.block));
        as_much->of_answer = own.of_answer;
        as_much->has_x = true;
      }
      return Use(as_much);
    }
    ++uses_[own.block].keeps;
    if (as_much != chunks_.end() && Common(as_much->ids, own.ids) == as_much->size()) Drop(as_much);  // it goes on
    std::erase(news_, HashOf(own));
    chunks_.push_back(std::move(own));
  }
  void Unkeep(int block) {
    --uses_[block].keeps;
    EraseIfBlank(block);
  }
  void Drop(Chunks::iterator chunk) {
    Unkeep(chunk->block);
    chunks_.erase(chunk);
  }
  // A conversation's end goes before its beginning.
  uint64_t DropOldest() {
    const auto oldest = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
      return std::none_of(chunks_.begin(), chunks_.end(), [&](const Chunk& other) {
        return other.salt == chunk.salt && other.begin() == chunk.size() &&
               Common(other.ids, chunk.ids) == chunk.size();
      });
    });
    const uint64_t hash = HashOf(*oldest);
    Drop(oldest);
    return hash;
  }
  static uint64_t HashOf(const Chunk& chunk) { return BeginningHash(BeginningHash(chunk.salt), chunk.ids); }

  const int64_t capacity_;
  std::map<int, Uses> uses_;  // of blocks that are not blank
  Chunks chunks_;
  int next_ = 0;
  int64_t promised_ = 0, growing_ = 0, evicted_ = 0;
  std::vector<uint64_t> news_;
};

}  // namespace runahead
