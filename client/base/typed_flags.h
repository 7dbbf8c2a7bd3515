// Options whose values are read by us and not by CLI11, so that a refusal names flag, value and what is allowed. Values
// must outlive `app`; a flag that is not given leaves its value alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace runahead {

// One number. Its range is checked by the service.
void AddNumber(CLI::App& app, const std::string& name, std::optional<int32_t>* value, const std::string& help,
               const std::string& type);
void AddNumber(CLI::App& app, const std::string& name, std::optional<uint64_t>* value, const std::string& help,
               const std::string& type);
void AddNumber(CLI::App& app, const std::string& name, std::optional<float>* value, const std::string& help,
               const std::string& type);
void AddNumber(CLI::App& app, const std::string& name, std::optional<double>* value, const std::string& help,
               const std::string& type);

// An option that may be repeated, each time with one value. Texts are taken as they stand. (CLI11's own vectors would
// swallow what follows, and take "[a,b]" apart.)
void AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>* values, const std::string& help,
                 const std::string& type);
void AddRepeated(CLI::App& app, const std::string& name, std::vector<int32_t>* values, const std::string& help,
                 const std::string& type);
// Of "KEY=VALUE"; of a key that is given twice the last value counts.
void AddRepeated(CLI::App& app, const std::string& name, std::map<int32_t, float>* values, const std::string& help,
                 const std::string& type);

}  // namespace runahead
