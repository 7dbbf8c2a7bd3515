// A GGUF file that has a model's configuration and no weights but an embedding's zeros.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/parsed_gguf.h"

namespace runahead {

// Adds to what `builder` has: the architecture, the numbers that have a value, and an embedding of [columns, 300].
inline std::shared_ptr<const ModelFile> ConfigFile(GgufBuilder builder, const std::string& architecture,
                                                   const std::map<std::string, std::optional<uint32_t>>& numbers,
                                                   int64_t columns) {
  builder.AddString("general.architecture", architecture);
  for (const auto& [key, value] : numbers) {
    if (value.has_value()) builder.AddUint32(key, *value);
  }
  builder.AddTensor("token_embd.weight", WeightType::kF32, {columns, 300}, std::string(columns * 300 * 4, '\0'));
  const auto file = ParseGguf(builder.Build());
  EXPECT_TRUE(file.ok()) << file.status();
  return *file;
}

}  // namespace runahead
