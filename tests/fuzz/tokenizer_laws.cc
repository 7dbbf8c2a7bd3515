#include "tests/fuzz/tokenizer_laws.h"

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/text_stream.h"
#include "server/tokenizer/utf8.h"

namespace runahead::fuzz {

void CheckTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text, bool exact) {
  const auto ids = tokenizer->Encode(text, {.parse_special = false, .add_bos = false});
  RUNAHEAD_CHECK(ids.ok());
  for (const int32_t id : *ids) {
    RUNAHEAD_CHECK(id >= 0 && id < tokenizer->vocab_size());
    RUNAHEAD_CHECK(!exact || !tokenizer->IsSpecial(id));
  }
  RUNAHEAD_CHECK(tokenizer->LeastTokens(std::vector{text}) <= static_cast<int64_t>(ids->size()));
  const auto of_part = tokenizer->EncodeParts(std::vector{TextPart{std::string(text), /*parse_special=*/false}});
  RUNAHEAD_CHECK(of_part.ok() && *of_part == *ids);

  const std::string decoded = tokenizer->Decode(*ids, /*skip_special=*/true);
  TextStream stream(tokenizer, /*skip_special=*/true);
  std::string streamed;
  for (const int32_t id : *ids) streamed += stream.Feed(id);
  RUNAHEAD_CHECK(streamed + stream.Finish() == decoded);
  if (exact) RUNAHEAD_CHECK(tokenizer->Decode(*ids, /*skip_special=*/false) == ReplaceInvalidUtf8(text));

  const auto special = tokenizer->Encode(text, {.parse_special = true, .add_bos = true});
  RUNAHEAD_CHECK(special.ok());
  for (const int32_t id : *special) RUNAHEAD_CHECK(id >= 0 && id < tokenizer->vocab_size());
}

}  // namespace runahead::fuzz
