#include "client/sampling_flags.h"

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"

namespace runahead {

void AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>* values, const std::string& help,
                 const std::string& type) {
  const auto collect = [values](const CLI::results_t& results) {
    *values = results;
    return true;
  };
  app.add_option(name, collect, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->type_name(type);
}

void SamplingFlags::AddTo(CLI::App& app) {
  app.add_option("--max-tokens", max_tokens, "Tokens to generate at most (default: 1024, or what the context leaves)")
      ->type_name("N");
  app.add_option("--temperature", temperature, "0 takes the likeliest token always; up to 100 (default: 0)")
      ->type_name("T");
  app.add_option("--top-k", top_k, "Choose among the K likeliest tokens; 0 is off (default: 0)")->type_name("K");
  app.add_option("--top-p", top_p, "Choose among the likeliest tokens of this total probability (default: 1)")
      ->type_name("P");
  app.add_option("--min-p", min_p, "Leave out tokens below this share of the likeliest one's probability (default: 0)")
      ->type_name("P");
  app.add_option("--repetition-penalty", repetition_penalty,
                 "Divides the scores of tokens that stand in prompt or output (default: 1)")
      ->type_name("R");
  app.add_option("--presence-penalty", presence_penalty,
                 "Taken from the scores of tokens that stand in the output (default: 0)")
      ->type_name("R");
  app.add_option("--frequency-penalty", frequency_penalty, "The same for each time that they stand there (default: 0)")
      ->type_name("R");
  app.add_option("--seed", seed, "Makes draws repeatable (default: the router draws one)")
      ->type_name("N")
      ->check([](const std::string& text) {
        uint64_t value = 0;  // CLI11 alone would wrap what is negative or too large
        return absl::SimpleAtoi(text, &value) ? std::string() : text + " is not a whole number from 0 to 2^64 - 1";
      });
  AddRepeated(app, "--stop", &stop, "End the output before this text; may be repeated", "TEXT");
  app.add_option("--stop-id", stop_ids, "End the output at this token id; may be repeated")
      ->allow_extra_args(false)
      ->type_name("N");
  app.add_flag("--ignore-eos", ignore_eos, "Go on past the model's own end tokens");
}

void SamplingFlags::FillIn(v1::GenerateRequest& request) const {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (temperature) sampling.set_temperature(*temperature);
  if (top_k) sampling.set_top_k(*top_k);
  if (top_p) sampling.set_top_p(*top_p);
  if (min_p) sampling.set_min_p(*min_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
  if (seed) sampling.set_seed(*seed);
  v1::StopConditions& conditions = *request.mutable_stop();
  if (max_tokens) conditions.set_max_tokens(*max_tokens);
  for (const std::string& text : stop) conditions.add_stop(text);
  conditions.mutable_stop_ids()->Assign(stop_ids.begin(), stop_ids.end());
  conditions.set_ignore_eos(ignore_eos);
}

}  // namespace runahead
