#include "client/base/typed_flags.h"

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

bool Parse(const std::string& text, int32_t* value) {
  return absl::SimpleAtoi(text, value);
}
bool Parse(const std::string& text, uint64_t* value) {
  return absl::SimpleAtoi(text, value);
}
bool Parse(const std::string& text, float* value) {
  return absl::SimpleAtof(text, value);
}
bool Parse(const std::string& text, double* value) {
  return absl::SimpleAtod(text, value);
}

const char* What(int32_t) {
  return "a whole number from -2147483648 to 2147483647";
}
const char* What(uint64_t) {
  return "a whole number from 0 to 2^64 - 1";
}
const char* What(double) {
  return "a number";
}

template <typename T>
T ParseOrThrow(const std::string& name, const std::string& text) {
  T value{};
  if (Parse(text, &value)) return value;
  throw CLI::ValidationError(name, absl::StrCat("'", text, "' is not ", What(value)));
}

template <typename T>
void Add(CLI::App& app, const std::string& name, std::optional<T>* value, const std::string& help,
         const std::string& type) {
  const auto read = [name, value](const CLI::results_t& results) {
    *value = ParseOrThrow<T>(name, results[0]);
    return true;
  };
  app.add_option(name, read, help)->type_name(type);
}

void AddAll(CLI::App& app, const std::string& name, const CLI::callback_t& read, const std::string& help,
            const std::string& type) {
  app.add_option(name, read, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->type_name(type);
}

}  // namespace

void AddNumber(CLI::App& app, const std::string& name, std::optional<int32_t>* value, const std::string& help,
               const std::string& type) {
  Add(app, name, value, help, type);
}

void AddNumber(CLI::App& app, const std::string& name, std::optional<uint64_t>* value, const std::string& help,
               const std::string& type) {
  Add(app, name, value, help, type);
}

void AddNumber(CLI::App& app, const std::string& name, std::optional<float>* value, const std::string& help,
               const std::string& type) {
  Add(app, name, value, help, type);
}

void AddNumber(CLI::App& app, const std::string& name, std::optional<double>* value, const std::string& help,
               const std::string& type) {
  Add(app, name, value, help, type);
}

void AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>* values, const std::string& help,
                 const std::string& type) {
  const auto read = [values](const CLI::results_t& results) {
    *values = results;
    return true;
  };
  AddAll(app, name, read, help, type);
}

void AddRepeated(CLI::App& app, const std::string& name, std::vector<int32_t>* values, const std::string& help,
                 const std::string& type) {
  const auto read = [name, values](const CLI::results_t& results) {
    values->clear();
    for (const std::string& text : results) values->push_back(ParseOrThrow<int32_t>(name, text));
    return true;
  };
  AddAll(app, name, read, help, type);
}

void AddRepeated(CLI::App& app, const std::string& name, std::map<int32_t, float>* values, const std::string& help,
                 const std::string& type) {
  const auto read = [name, type, values](const CLI::results_t& results) {
    values->clear();
    for (const std::string& text : results) {
      const size_t at = text.find('=');
      if (at == std::string::npos) throw CLI::ValidationError(name, absl::StrCat("'", text, "' is not ", type));
      (*values)[ParseOrThrow<int32_t>(name, text.substr(0, at))] = ParseOrThrow<float>(name, text.substr(at + 1));
    }
    return true;
  };
  AddAll(app, name, read, help, type);
}

}  // namespace runahead
