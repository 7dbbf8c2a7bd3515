// Writes a synthetic checkpoint; for integration tests, benches and the golden script.
#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/testing/synthetic_gguf.h"

int main(int argc, char** argv) {
  runahead::SyntheticModel model;
  runahead::WeightType type = runahead::WeightType::kF32;
  bool untied = false;
  std::string path;
  std::map<std::string, runahead::WeightType> types;
  for (const runahead::WeightBlock& block : runahead::kWeightBlocks) types[block.name] = block.type;

  CLI::App app{"Write a synthetic checkpoint with seeded random weights."};
  app.add_option("output", path, "file to write")->required();
  using runahead::SyntheticFamily;
  using runahead::SyntheticScaling;
  std::map<std::string, SyntheticFamily> families;
  for (const SyntheticFamily family : runahead::kSyntheticFamilies) families[runahead::ArchitectureOf(family)] = family;
  const std::map<std::string, SyntheticScaling> scalings = {{"linear", SyntheticScaling::kLinear},
                                                            {"dynamic", SyntheticScaling::kDynamic},
                                                            {"llama3", SyntheticScaling::kLlama3},
                                                            {"yarn", SyntheticScaling::kYarn}};
  app.add_option("--family", model.family)->transform(CLI::CheckedTransformer(families, CLI::ignore_case));
  app.add_option("--name", model.name, "general.name of the model")->capture_default_str();
  app.add_option("--layers", model.layers)->capture_default_str();
  app.add_option("--hidden", model.hidden)->capture_default_str();
  app.add_option("--heads", model.heads)->capture_default_str();
  app.add_option("--kv-heads", model.kv_heads)->capture_default_str();
  app.add_option("--head-dim", model.head_dim, "0: hidden / heads")->capture_default_str();
  app.add_option("--rotated", model.rotated, "dimensions of a head; 0: all")->capture_default_str();
  app.add_option("--ffn", model.ffn)->capture_default_str();
  app.add_option("--vocab", model.vocab, "at least 259")->capture_default_str();
  app.add_option("--context", model.context_length)->capture_default_str();
  app.add_option("--rope-base", model.rope_base)->capture_default_str();
  app.add_option("--rope-scaling", model.scaling)->transform(CLI::CheckedTransformer(scalings, CLI::ignore_case));
  app.add_option("--window", model.window, "of local layers; 0: none are")->capture_default_str();
  app.add_flag("--biases", model.biases);
  app.add_flag("--two-norms", model.two_norms, "of Falcon");
  app.add_option("--type", type, "of all matrices")->transform(CLI::CheckedTransformer(types, CLI::ignore_case));
  app.add_option("--finer-type", model.finer_type, "of V and the down projection instead")
      ->transform(CLI::CheckedTransformer(types, CLI::ignore_case));
  app.add_flag("--untied", untied, "write a head of its own");
  app.add_option("--seed", model.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  model.SetWeightType(type);
  model.tied = !untied;
  const absl::Status status = runahead::WriteSyntheticGguf(model, path);
  if (status.ok()) return 0;
  std::fprintf(stderr, "make_synthetic_gguf: %s\n", std::string(status.message()).c_str());
  return 1;
}
