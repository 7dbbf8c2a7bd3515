#include "server/tokenizer/tokenizer_config_json.h"

#include "nlohmann/json.hpp"

namespace runahead {
namespace {

using ConfigJson = nlohmann::ordered_json;

std::string ConfigText(const ConfigJson& config) {
  return config.dump(2, ' ', /*ensure_ascii=*/false, ConfigJson::error_handler_t::replace) + "\n";
}

}  // namespace

std::string TokenizerConfigJson(const TokenizerFacts& facts) {
  ConfigJson config = ConfigJson::object();
  // Other classes of transformers change what tokenizer.json says.
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  // Of these SMG guesses a name by the vocabulary where there is none ("<s>"), and templates would write it. To
  // transformers an empty one is none.
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) config[name] = "";
  for (const auto& [name, token] : facts.tokens) config[name] = token;
  config["add_bos_token"] = facts.adds_bos;
  config["add_eos_token"] = false;
  config["clean_up_tokenization_spaces"] = false;
  if (facts.context) config["model_max_length"] = *facts.context;
  if (facts.chat_template) config["chat_template"] = *facts.chat_template;
  return ConfigText(config);
}

std::string ModelConfigJson(const TokenizerFacts& facts) {
  ConfigJson config = ConfigJson::object();
  if (!facts.model_type.empty()) config["model_type"] = facts.model_type;
  if (facts.rows) config["vocab_size"] = *facts.rows;
  if (facts.context) config["max_position_embeddings"] = *facts.context;
  if (facts.bos) config["bos_token_id"] = *facts.bos;
  if (!facts.ends.empty()) config["eos_token_id"] = facts.ends;
  return ConfigText(config);
}

}  // namespace runahead
