// A decode worker has KV of a prompt's beginning, or will have it. The rest is computed by that worker, or by a chain
// that gets the KV from it; or a chain computes all of the prompt. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "scheduler/partition/rest_of_prompt.h"
#include "scheduler/placement/known_beginnings.h"

namespace runahead {

// Who computes the rest.
enum class KnownWay {
  kNone,   // nobody: a chain computes all
  kRows,   // the decode worker, as rows of a prompt
  kChain,  // a chain that gets the KV from it
};

// The ways that a decode worker leaves open to prompts that begin with what it has.
struct KnownWays {
  bool rows = false;
  bool chain = false;
  friend bool operator==(const KnownWays&, const KnownWays&) = default;
};

struct ContinuationView {
  int64_t prompt_tokens = 0;
  int64_t known_tokens = 0;  // that the worker is said to have
  double chain_s = 0;        // by a chain, until the first token, with all that goes before it; 0: not known
  bool busy = false;         // the worker has other sequences
  int64_t rests = 0;         // of prompts that it computes already
  double pace = 1;           // by how much longer such rests take lately than expected
};

// By how much longer the rest takes than alone. Steps compute a part of it beside what sequences decode: with as many
// rows of either that is twice as long. The rests of prompts are computed one after the other. Whatever that leaves out
// shows in the pace.
inline double FactorBeside(const ContinuationView& view) {
  return (view.busy ? 2 : 1) * static_cast<double>(1 + view.rests) * view.pace;
}

// What a worker offers that has KV of a beginning.
struct ContinuationOffer {
  int64_t least_known_tokens = 0;  // that it must have; 0: a chain is better in any case
  double rest_s = 0;               // by what it is said to have; where no times are known, tokens in place of seconds
  double whole_s = 0;              // ContinuationView::chain_s; 0: no times are known
};

// The least is what makes the rest come sooner from the worker than all from a chain. `on_one_s` gives 0 where no times
// are known: then half of the prompt must be there.
inline ContinuationOffer OfferToContinue(const ContinuationView& view,
                                         absl::FunctionRef<double(int64_t tokens)> on_one_s) {
  // The prompt's last token is always computed: the first one of the answer is drawn behind it.
  const int64_t most = std::min(view.known_tokens, view.prompt_tokens - 1);
  const bool timed = view.chain_s > 0 && on_one_s(view.prompt_tokens) > 0;
  const auto pays = [&](int64_t known) {
    if (!timed) return 2 * known >= view.prompt_tokens;
    return SecondsOfRest(view.prompt_tokens, known, on_one_s) * FactorBeside(view) < view.chain_s;
  };
  if (most < kLeastKnownTokens || !pays(most)) return {};
  int64_t least = most;  // pays, and all above it; what is below `from` is too short, or does not pay
  for (int64_t from = kLeastKnownTokens; from < least;) {
    const int64_t middle = from + (least - from) / 2;
    if (pays(middle)) {
      least = middle;
    } else {
      from = middle + 1;
    }
  }
  const double rest =
      timed ? SecondsOfRest(view.prompt_tokens, most, on_one_s) : static_cast<double>(view.prompt_tokens - most);
  return {least, rest * FactorBeside(view), timed ? view.chain_s : 0};
}

// What a chain offers that gets KV of a beginning from a decode worker.
struct BehindOffer {
  int64_t known_tokens = 0;  // of which it gets KV; 0: a chain that computes all is better, or as good
  double rest_s = 0;         // until the first token; where no times are known, tokens in place of seconds
  double whole_s = 0;        // likewise by a chain that computes all; 0: no times are known
};

// A chain takes prefill workers from others, and KV moves: it must be sooner by a tenth than the worker that has the
// KV.
inline constexpr double kChainBehindCosts = 1.1;

// Of known tokens those that a chain can get: not the prompt's last token.
inline int64_t TokensToBring(int64_t prompt_tokens, int64_t known_tokens) {
  return std::max<int64_t>(0, std::min(known_tokens, prompt_tokens - 1));
}

// `brought` as TokensToBring says. `whole_s` is until the first token by a chain that computes all, rest_s by one that
// gets these, both with all that goes before; 0: not known, then half of the prompt must be there.
inline BehindOffer OfferBehind(int64_t prompt_tokens, int64_t brought, double whole_s, double rest_s) {
  const bool timed = whole_s > 0 && rest_s > 0;
  const bool pays = timed ? rest_s < whole_s : 2 * brought >= prompt_tokens;
  if (brought < kLeastKnownTokens || !pays) return {};
  return {brought, timed ? rest_s : static_cast<double>(prompt_tokens - brought), timed ? whole_s : 0};
}

// A decode worker that recomputes KV from X streams all KV of a sequence behind a beginning that it has without X. Each
// of the answer's `steps` is expected to take lost_step_s longer then than behind a prompt that is computed from its
// first token; the beginning brings the first token saved_s sooner. Whether it is to be left unused for that.
inline bool StepsCostMore(double saved_s, double lost_step_s, int64_t steps) {
  return lost_step_s * static_cast<double>(steps) > saved_s;
}

// Whether to wait for known_tokens, which a worker is expected to have in `wait_s`, and have the rest computed there,
// rather than all of it as it stands, in chain_s. What is later than was expected may come any moment.
inline bool PaysToWait(ContinuationView view, double wait_s, absl::FunctionRef<double(int64_t tokens)> on_one_s) {
  const bool timed = view.chain_s > 0 && on_one_s(view.prompt_tokens) > 0;
  if (timed) view.chain_s -= std::max(0.0, wait_s);
  if (timed && view.chain_s <= 0) return false;
  return OfferToContinue(view, on_one_s).least_known_tokens > 0;
}

// A prompt that may wait for known_tokens, which a decode worker will have, and begin behind them by a chain.
struct ComingBehindView {
  int64_t prompt_tokens = 0;
  int64_t known_tokens = 0;
  double whole_s = 0;   // until the first token by a chain that computes all, as things stand; 0: not known
  double before_s = 0;  // of it, what goes before that chain
  double rest_s = 0;    // what the rest takes on a chain, with what bringing takes; 0: not known
  int64_t waiting = 0;  // others that wait for the same, and whose chains go first
  double each_s = 0;    // by how much each of them makes it later
};

// Whether to wait for them. What goes before a chain is no shorter by then than what goes before the one that computes
// all: nothing is overtaken. Its place is given back meanwhile, so a little that is saved is not worth it, either.
inline bool PaysToWaitForChain(const ComingBehindView& view, double wait_s) {
  const double begins_s = std::max({0.0, wait_s, view.before_s}) + static_cast<double>(view.waiting) * view.each_s;
  const double by_chain_s = view.rest_s > 0 ? begins_s + view.rest_s * kChainBehindCosts : 0;
  const int64_t brought = TokensToBring(view.prompt_tokens, view.known_tokens);
  return OfferBehind(view.prompt_tokens, brought, view.whole_s, by_chain_s).known_tokens > 0;
}

}  // namespace runahead
