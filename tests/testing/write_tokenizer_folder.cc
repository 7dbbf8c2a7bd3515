// Writes the folder that a gateway gets of a model's tokenizer, for tests/front_door/tokenizer_folder_test.py. usage:
//
//   write_tokenizer_folder model PATH OUT              OUT.zip, of a GGUF file or a folder
//
//   write_tokenizer_folder gguf NAME OUT [TEMPLATE]    OUT.gguf, of a golden vocabulary, and OUT.zip
//
//   write_tokenizer_folder json NAME OUT               OUT.json, its tokenizer.json, and OUT.zip
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"
#include "server/base/zip_archive.h"
#include "server/tokenizer/tokenizer_archive.h"
#include "server/tokenizer/tokenizer_json_writer.h"
#include "server/tokenizer/vocabulary.h"
#include "tests/testing/golden_vocabulary.h"
#include "tests/testing/tokenizer_json.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

absl::Status OfModel(const std::string& path, const std::string& out) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string archive, TokenizerArchive(*file));
  return WriteTextFile(out + ".zip", archive);
}

absl::Status OfGolden(const std::string& name, const std::string& out, const std::string& chat_template) {
  GgufBuilder builder;
  AddGoldenVocabulary(name, builder);
  builder.AddUint32("llama.context_length", 4096);
  if (!chat_template.empty()) {
    std::ifstream in(chat_template);
    builder.AddString("tokenizer.chat_template", std::string(std::istreambuf_iterator<char>(in), {}));
    builder.AddUint32("tokenizer.ggml.eos_token_id", GoldenTokenId(name, "</s>"));
  }
  RUNAHEAD_RETURN_IF_ERROR(builder.Write(out + ".gguf"));
  return OfModel(out + ".gguf", out);
}

// Its own tokenizer.json would be sent as it is: here one is written of what was read from it.
absl::Status OfGoldenJson(const std::string& name, const std::string& out) {
  const std::string own = GoldenTokenizerJson(name);
  RUNAHEAD_ASSIGN_OR_RETURN(const auto file, ModelOfTokenizerJson(own));
  RUNAHEAD_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string json, TokenizerJson(vocabulary));
  RUNAHEAD_RETURN_IF_ERROR(WriteTextFile(out + ".json", own));
  return WriteTextFile(out + ".zip", ZipArchive({{"tokenizer.json", json}}));
}

absl::Status Run(const std::string& kind, const std::string& what, const std::string& out,
                 const std::string& chat_template) {
  if (kind == "model") return OfModel(what, out);
  if (kind == "gguf") return OfGolden(what, out, chat_template);
  if (kind == "json") return OfGoldenJson(what, out);
  return absl::InvalidArgumentError("the first argument is model, gguf or json");
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    std::cerr << "usage: write_tokenizer_folder model|gguf|json WHAT OUT [TEMPLATE]\n";
    return 2;
  }
  const absl::Status status = runahead::Run(argv[1], argv[2], argv[3], argc == 5 ? argv[4] : "");
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
