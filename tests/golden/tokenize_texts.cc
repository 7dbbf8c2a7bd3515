// Tokenizes texts by a vocabulary, for check_vocabularies.py: one JSON string a line in, one object a line out: ids,
// with special tokens recognised (`ids`) and as ordinary text (`plain`), and the text that `ids` decode to. usage:
// tokenize_texts MODEL.gguf|tokenizer.json < TEXTS > IDS
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/tokenizer.h"
#include "tests/testing/tokenizer_json.h"
#include "worker/format/gguf.h"

namespace {

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<std::shared_ptr<const runahead::ModelFile>> Open(const std::string& path) {
  if (!absl::EndsWith(path, ".json")) return runahead::OpenGguf(path);
  return runahead::ModelOfTokenizerJson(Read(path),
                                        Read(std::filesystem::path(path).replace_filename("tokenizer_config.json")));
}

int Run(const std::string& path) {
  const auto file = Open(path);
  if (!file.ok()) {
    std::cerr << file.status() << "\n";
    return 1;
  }
  const auto tokenizer = runahead::Tokenizer::FromModel(**file);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string text = nlohmann::json::parse(line);
    const auto ids = (*tokenizer)->Encode(text, {.parse_special = true, .add_bos = false});
    const auto plain = (*tokenizer)->Encode(text, {.add_bos = false});
    if (!ids.ok() || !plain.ok()) {
      std::cerr << ids.status() << " " << plain.status() << "\n";
      return 1;
    }
    const std::string decoded = (*tokenizer)->Decode(*ids, /*skip_special=*/false);
    std::cout << nlohmann::json{{"ids", *ids}, {"plain", *plain}, {"text", decoded}}.dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_texts MODEL.gguf|tokenizer.json < TEXTS > IDS\n";
    return 2;
  }
  return Run(argv[1]);
}
