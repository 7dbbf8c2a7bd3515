// A GGUF file: header, metadata, tensor table.
#include "worker/format/gguf.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/touch_model.h"

void runahead::Fuzz(std::string_view input) {
  const auto file = ParseGguf("m.gguf", fuzz::AsBytes(input), nullptr);
  if (!file.ok()) return fuzz::CheckRefusal(file.status(), "m.gguf: ");
  fuzz::TouchModel(**file);
  const auto again = ParseGguf("m.gguf", fuzz::AsBytes(input), nullptr);
  RUNAHEAD_CHECK(again.ok() && (*again)->fingerprint() == (*file)->fingerprint());
}
