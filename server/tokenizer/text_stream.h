// Token ids to text, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/utf8.h"

namespace runahead {

// The text of one answer while it is generated: deltas never split a character, and joined they are Tokenizer::Decode
// of all ids. For one thread at a time.
class TextStream {
 public:
  // `goes_on`: behind other text, so that nothing is taken away from the begin, as Decode does.
  TextStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special, bool goes_on = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), begun_(goes_on) {}

  // The text that is complete with this token; often more or less than the token's own.
  std::string Feed(int32_t id) { return bytes_.Feed(tokenizer_->NextBytes(id, skip_special_, begun_)); }

  // What is left at the end of the answer: U+FFFD for a character that was never completed.
  std::string Finish() { return bytes_.Finish(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  const bool skip_special_;
  bool begun_;
  Utf8Stream bytes_;
};

}  // namespace runahead
