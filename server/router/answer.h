// From sampled tokens to what the client reads: text, stop strings, the reason of the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "runahead/v1/inference.pb.h"
#include "runahead/v1/worker.pb.h"
#include "server/tokenizer/stop_matcher.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/tokenizer.h"

namespace runahead {

// What the tokens of `logprobs` say, beside their ids.
void FillTexts(const Tokenizer& tokenizer, v1::TokenLogprobs& logprobs);

// For one thread at a time.
class Answer {
 public:
  // `stop_ids` has the model's end tokens where they count. `goes_on`: the prompt ends with text, with which the
  // answer's is one: a blank at its begin, which some vocabularies take away from a text's, is kept. A stop string that
  // is complete within the first `min_tokens` tokens does not end it. With `max_tokens` 0 it has ended.
  Answer(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops,
         const std::vector<int32_t>& stop_ids, int32_t max_tokens, bool goes_on = false, int32_t min_tokens = 0);

  // Adds one token to `message`, and what tokens say to its logprobs; does nothing once the answer has ended. The token
  // that ends it is among the ids, but a stop id is no text.
  void Feed(const v1::SampledToken& token, v1::Tokens& message);

  // Why it ended, if it did.
  std::optional<v1::FinishReason> reason() const { return reason_; }
  // Whether a stop string ended it: the decode worker does not know of those.
  bool stopped_by_text() const { return stopped_by_text_; }
  int32_t tokens() const { return static_cast<int32_t>(ids_.size()); }
  // All of them, with which it goes on anywhere. Their text may be held back here.
  const std::vector<int32_t>& ids() const { return ids_; }

  // The text held back until now, once the answer has ended.
  std::string Finish();

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const absl::flat_hash_set<int32_t> stop_ids_;
  const int32_t max_tokens_;
  const int32_t min_tokens_;
  TextStream text_;
  StopMatcher stops_;
  std::vector<int32_t> ids_;
  bool stopped_by_text_ = false;
  std::optional<v1::FinishReason> reason_;
};

}  // namespace runahead
