#include "tests/testing/golden_vocabulary.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

using nlohmann::json;

json Read(const std::string& name) {
  std::ifstream in("tests/golden/data/tokenizers/" + name + ".json");
  return json::parse(in);
}

// The tokens of a tokenizer.json by their ids, and GGUF's numbers for their kinds.
struct TokenTable {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;

  explicit TokenTable(const json& tokenizer) {
    const auto set = [this](size_t id, const std::string& text, int32_t type) {
      if (id >= tokens.size()) {
        tokens.resize(id + 1);
        types.resize(id + 1, 1);
      }
      tokens[id] = text;
      types[id] = type;
    };
    const json& vocab = tokenizer["model"]["vocab"];
    if (vocab.is_array()) {
      for (size_t id = 0; id < vocab.size(); ++id) set(id, vocab[id][0], 1);
    } else {
      for (const auto& [text, id] : vocab.items()) set(id, text, 1);
    }
    for (const json& added : tokenizer["added_tokens"]) set(added["id"], added["content"], added["special"] ? 3 : 4);
  }

  uint32_t IdOf(const std::string& token) const {
    const auto found = std::find(tokens.begin(), tokens.end(), token);
    RUNAHEAD_CHECK(found != tokens.end());
    return static_cast<uint32_t>(found - tokens.begin());
  }
};

}  // namespace

std::vector<std::string> GoldenVocabularies() {
  return {"gpt2",   "opt",     "llama3", "qwen2", "smollm",  "falcon",
          "llama2", "mistral", "phi3",   "gemma", "unigram", "unigram_unknown"};
}

std::vector<std::string> GoldenGgufVocabularies() {
  return {"gpt2", "opt", "llama3", "qwen2", "smollm", "falcon", "llama2", "phi3", "gemma", "unigram"};
}

std::string GoldenTokenizerJson(const std::string& name) {
  return Read(name).at("tokenizer").dump();
}

void AddGoldenVocabulary(const std::string& name, GgufBuilder& builder) {
  const json golden = Read(name);
  const json& gguf = golden["gguf"];
  TokenTable table(golden["tokenizer"]);
  if (gguf.contains("types")) table.types = gguf["types"].get<std::vector<int32_t>>();
  builder.AddString("general.architecture", gguf.value("architecture", "llama"));
  builder.AddString("tokenizer.ggml.model", gguf["model"]);
  builder.AddStrings("tokenizer.ggml.tokens", table.tokens);
  builder.AddInts("tokenizer.ggml.token_type", table.types);
  if (gguf.contains("pre")) builder.AddString("tokenizer.ggml.pre", gguf["pre"]);
  if (gguf.contains("scores")) {
    builder.AddFloats("tokenizer.ggml.scores", gguf["scores"].get<std::vector<float>>());
  } else {
    std::vector<std::string> merges;
    for (const json& merge : golden["tokenizer"]["model"]["merges"]) {
      merges.push_back(merge.is_string() ? merge.get<std::string>()
                                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
    builder.AddStrings("tokenizer.ggml.merges", merges);
  }
  if (gguf.contains("bos")) builder.AddUint32("tokenizer.ggml.bos_token_id", table.IdOf(gguf["bos"]));
  for (const char* flag : {"add_space_prefix", "add_bos"}) {
    const std::string key = std::string("tokenizer.ggml.") + flag + (std::strcmp(flag, "add_bos") == 0 ? "_token" : "");
    if (gguf.contains(flag)) builder.AddBool(key, gguf[flag]);
  }
}

uint32_t GoldenTokenId(const std::string& name, const std::string& token) {
  return TokenTable(Read(name).at("tokenizer")).IdOf(token);
}

std::vector<std::string> GoldenTexts() {
  return Read("texts").at("texts");
}

}  // namespace runahead
