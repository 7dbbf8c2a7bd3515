// What decode workers keep of sequences that ended, by the rules of docs/prefix-cache.md: which beginning of a prompt
// is known there? An independent reference: it compares each prompt with all that ever ended, token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace runahead::testing {

// Nothing goes for want of memory. For one thread.
class KeptSequences {
 public:
  // Tokens, of which there are so many for certain, and so many at most.
  struct Count {
    int64_t least = 0, most = 0;
  };
  struct Known {
    Count tokens;
    bool whole = false;  // the least is all that a sequence left: windows hide nothing of it
  };
  // That ended at a worker. Of its ids, the last one of the answer left out, KV of the first `certain` is there, of the
  // others maybe. `known` of them were known when it began; those from `prompt` on are its answer's.
  struct Ended {
    std::vector<int32_t> ids;
    int64_t known = 0, prompt = 0, certain = 0;
  };

  // Of a prompt, at the worker of this name. The last token of a prompt is always computed, and less than 32 are worth
  // nothing.
  Known KnownOf(const std::string& worker, const std::vector<int32_t>& prompt) const {
    Known known;
    for (const Sequence& kept : Of(worker)) {
      const int64_t common = Common(kept.ids, prompt), certain = std::min(common, kept.certain);
      known.tokens.most = std::max(known.tokens.most, common);
      if (certain < known.tokens.least) continue;
      known.whole = certain == kept.certain || (known.whole && certain == known.tokens.least);
      known.tokens.least = certain;
    }
    const int64_t most = static_cast<int64_t>(prompt.size()) - 1;
    known.whole = known.whole && known.tokens.least <= most;
    known.tokens = {Worth(std::min(known.tokens.least, most)), Worth(std::min(known.tokens.most, most))};
    return known;
  }

  // How many of the first `known` tokens decode computed, as tokens of an answer. Where one sequence's answer is
  // another one's prompt, as of an edit that brings a cold run, either's KV may have been kept.
  Count OutputsOf(const std::string& worker, const std::vector<int32_t>& prompt, int64_t known) const {
    Count count;
    for (const Drawn& drawn : DrawnOf(worker, prompt, known)) {
      count.least += drawn.surely;
      count.most += drawn.maybe;
    }
    return count;
  }

  void Keep(const std::string& worker, const Ended& ended) {
    Sequence kept{ended.ids, ended.certain, DrawnOf(worker, ended.ids, ended.known)};
    kept.drawn.resize(ended.prompt, {false, false});
    kept.drawn.resize(ended.ids.size(), {true, true});
    kept_[worker].push_back(std::move(kept));
  }

 private:
  // By decode.
  struct Drawn {
    bool surely = false, maybe = false;
  };
  struct Sequence {
    std::vector<int32_t> ids;
    int64_t certain = 0;
    std::vector<Drawn> drawn;  // of each id
  };
  static constexpr int64_t kLeast = 32;

  static int64_t Worth(int64_t tokens) { return tokens < kLeast ? 0 : tokens; }
  static int64_t Common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    const size_t most = std::min(a.size(), b.size());
    return std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(most), b.begin()).first - a.begin();
  }
  const std::vector<Sequence>& Of(const std::string& worker) const {
    static const std::vector<Sequence> none;
    const auto found = kept_.find(worker);
    return found == kept_.end() ? none : found->second;
  }
  // Of the first `known` ids, by all that begin so.
  std::vector<Drawn> DrawnOf(const std::string& worker, const std::vector<int32_t>& ids, int64_t known) const {
    std::vector<Drawn> all(known, {true, false});
    for (const Sequence& kept : Of(worker)) {
      const int64_t common = std::min(Common(kept.ids, ids), known);
      for (int64_t i = 0; i < common; ++i) {
        all[i].surely = all[i].surely && kept.drawn[i].surely;
        all[i].maybe = all[i].maybe || kept.drawn[i].maybe;
      }
    }
    for (Drawn& drawn : all) drawn.surely = drawn.surely && drawn.maybe;
    return all;
  }

  std::map<std::string, std::vector<Sequence>> kept_;  // by the worker's name
};

}  // namespace runahead::testing
