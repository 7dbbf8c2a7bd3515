// A tokenizer.json, and behind the border a tokenizer_config.json.
#include "tests/testing/tokenizer_json.h"

#include "server/tokenizer/template_tokens.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_laws.h"

void runahead::Fuzz(std::string_view input) {
  const auto pieces = fuzz::Pieces(input, 2);
  const auto model = ModelOfTokenizerJson(std::string(pieces[0]), std::string(pieces[1]));
  if (!model.ok()) return fuzz::CheckRefusal(model.status(), "test.gguf");
  const auto tokenizer = Tokenizer::FromModel(**model);
  if (!tokenizer.ok()) return fuzz::CheckRefusal(tokenizer.status(), "test.gguf");
  for (const char* text : {"", " the th\xC3\xA9 12345 <|end|>\n\n x", "\xFF\xE2\x96\x81 aab ab\xF0\x9F\x98\x80"}) {
    fuzz::CheckTokenizer(*tokenizer, text, /*exact=*/false);
  }
  if (const auto tokens = TemplateTokens(**model, **tokenizer); !tokens.ok()) {
    fuzz::CheckRefusal(tokens.status(), "test.gguf");
  }
}
