// A text for the small vocabularies of tests/golden; the first byte says which.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/tokenizer_laws.h"
#include "tests/testing/tokenizer_json.h"

namespace runahead {
namespace {

// Those whose texts come back: every byte has a token, and nothing normalises.
constexpr const char* kExact[] = {"gpt2", "llama3", "falcon"};
constexpr const char* kOthers[] = {"qwen2",   "smollm", "opt",     "llama2",         "gemma",
                                   "mistral", "phi3",   "unigram", "unigram_unknown"};

std::shared_ptr<const Tokenizer> Load(const std::string& name) {
  std::ifstream file("tests/golden/data/tokenizers/" + name + ".json");
  RUNAHEAD_CHECK(file.good());  // it is to be started in the repository's root
  const auto model = ModelOfTokenizerJson(nlohmann::json::parse(file)["tokenizer"].dump());
  RUNAHEAD_CHECK(model.ok());
  const auto tokenizer = Tokenizer::FromModel(**model);
  RUNAHEAD_CHECK(tokenizer.ok());
  return *tokenizer;
}

const std::vector<std::shared_ptr<const Tokenizer>>& Tokenizers() {
  static const auto& all = *new const std::vector<std::shared_ptr<const Tokenizer>>([] {
    std::vector<std::shared_ptr<const Tokenizer>> made;
    for (const char* name : kExact) made.push_back(Load(name));
    for (const char* name : kOthers) made.push_back(Load(name));
    return made;
  }());
  return all;
}

}  // namespace

void Fuzz(std::string_view input) {
  const std::vector<std::shared_ptr<const Tokenizer>>& all = Tokenizers();
  if (input.empty()) return;
  const size_t which = static_cast<unsigned char>(input[0]) % all.size();
  fuzz::CheckTokenizer(all[which], input.substr(1), which < std::size(kExact));
}

}  // namespace runahead

// They take longer to load than an input may.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  (void)runahead::Tokenizers();
  return 0;
}
