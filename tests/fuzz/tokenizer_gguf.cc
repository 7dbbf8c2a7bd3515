// A GGUF file with a vocabulary by its keys: byte-level BPE or SentencePiece's.
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_laws.h"
#include "worker/format/gguf.h"

void runahead::Fuzz(std::string_view input) {
  const auto model = ParseGguf("m.gguf", fuzz::AsBytes(input), nullptr);
  if (!model.ok()) return;
  const auto tokenizer = Tokenizer::FromModel(**model);
  if (!tokenizer.ok()) return fuzz::CheckRefusal(tokenizer.status(), "m.gguf");
  for (const char* text : {"", " the th\xC3\xA9 12345 <|im_end|>\n\n x", "\xFF\xE2\x96\x81 aab ab\xF0\x9F\x98\x80"}) {
    fuzz::CheckTokenizer(*tokenizer, text, /*exact=*/false);
  }
}
