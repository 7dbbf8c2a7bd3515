// A Hugging Face folder: its files are the pieces of the input, in the order of kNames; one that is empty is not there.
#include "worker/format/model_folder.h"

#include <filesystem>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/touch_model.h"

namespace {
constexpr const char* kNames[] = {"config.json",
                                  "model.safetensors",
                                  "model.safetensors.index.json",
                                  "model-00001-of-00002.safetensors",
                                  "model-00002-of-00002.safetensors",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "generation_config.json",
                                  "special_tokens_map.json",
                                  "chat_template.json"};
}  // namespace

void runahead::Fuzz(std::string_view input) {
  const auto pieces = fuzz::Pieces(input, std::size(kNames));
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].empty()) {
      std::filesystem::remove(fuzz::Folder() + "/" + kNames[i]);
    } else {
      fuzz::WriteFile(kNames[i], pieces[i]);
    }
  }
  const auto file = OpenFolder(fuzz::Folder());
  if (!file.ok()) return fuzz::CheckRefusal(file.status(), fuzz::Folder());
  fuzz::TouchModel(**file);
}
