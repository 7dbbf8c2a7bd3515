// A model in two GGUF files, each a piece of the input.
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/touch_model.h"
#include "worker/format/gguf.h"

void runahead::Fuzz(std::string_view input) {
  const auto pieces = fuzz::Pieces(input, 2);
  if (pieces[0].empty() || pieces[1].empty()) return;
  const std::string first = fuzz::WriteFile("m-00001-of-00002.gguf", pieces[0]);
  fuzz::WriteFile("m-00002-of-00002.gguf", pieces[1]);
  const auto file = OpenGguf(first);
  if (!file.ok()) return fuzz::CheckRefusal(file.status(), fuzz::Folder() + "/m-0000");
  fuzz::TouchModel(**file);
}
