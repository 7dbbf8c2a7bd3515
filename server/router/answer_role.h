// What a session has to do with others, where it gives one of several answers to a prompt (AnswerGroup).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/base/byte_budget.h"
#include "server/router/key_account.h"

namespace runahead {

// What was taken for one answer when the call's prompt was known.
struct AnswerShare {
  ByteBudget::Lease memory;
  KeyGrant grant;
};

// Thread-safe; never blocks.
class AnswerSiblings {
 public:
  virtual ~AnswerSiblings() = default;

  // From answer 0, once, before all else: its prompt, how many tokens each answer may have, and a share for each of the
  // others.
  virtual void Took(absl::Span<const int32_t> prompt, int32_t max_tokens, std::vector<AnswerShare> shares) = 0;

  // From any answer, once or more: the others need not wait for KV of the prompt any more, for a decode worker has it
  // where they can begin with it, or none will.
  virtual void MayBegin() = 0;
};

struct AnswerRole {
  int32_t answer = 0;  // from 0
  int32_t answers = 1;
  AnswerSiblings* siblings = nullptr;  // outlives the session; null: it gives the only answer

  // What is of the call, and not of an answer, belongs to answer 0.
  bool later() const { return answer > 0; }
};

}  // namespace runahead
