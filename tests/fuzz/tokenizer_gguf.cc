// A GGUF file with a vocabulary by its keys: byte-level BPE or SentencePiece's.
#include "absl/strings/match.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/tokenizer_json_writer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_laws.h"
#include "tests/testing/tokenizer_json.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr const char* kTexts[] = {"", " the th\xC3\xA9 12345 <|im_end|>\n\n x",
                                  "\xFF\xE2\x96\x81 aab ab\xF0\x9F\x98\x80"};

// What can be written as a tokenizer.json is the same vocabulary to who reads that.
void CheckWritten(const ModelFile& model, const Tokenizer& tokenizer) {
  const auto written = TokenizerJson(*ReadVocabulary(model));
  RUNAHEAD_CHECK(written.ok() || absl::IsFailedPrecondition(written.status()));
  if (!written.ok()) return;
  const auto again = Tokenizer::FromModel(**ModelOfTokenizerJson(*written));
  // Tokens of a Unigram that are so long are refused in that form.
  RUNAHEAD_CHECK(again.ok() || absl::StrContains(again.status().message(), "are supported"));
  if (!again.ok()) return;
  for (const char* text : kTexts) {
    const auto ids = *tokenizer.Encode(text, {.parse_special = true});
    RUNAHEAD_CHECK(*(*again)->Encode(text, {.parse_special = true}) == ids);
    RUNAHEAD_CHECK((*again)->Decode(ids, /*skip_special=*/false) == tokenizer.Decode(ids, /*skip_special=*/false));
  }
}

}  // namespace
}  // namespace runahead

void runahead::Fuzz(std::string_view input) {
  const auto model = ParseGguf("m.gguf", fuzz::AsBytes(input), nullptr);
  if (!model.ok()) return;
  const auto tokenizer = Tokenizer::FromModel(**model);
  if (!tokenizer.ok()) return fuzz::CheckRefusal(tokenizer.status(), "m.gguf");
  for (const char* text : kTexts) fuzz::CheckTokenizer(*tokenizer, text, /*exact=*/false);
  CheckWritten(**model, **tokenizer);
}
