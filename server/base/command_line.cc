#include "server/base/command_line.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/base/did_you_mean.h"

namespace runahead {
namespace {

constexpr size_t kHelpColumns = 100;  // of the whole help, where words allow it

std::string Wrap(absl::string_view text, size_t columns) {
  std::string wrapped;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!wrapped.empty()) wrapped += '\n';
    size_t used = 0;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      if (used > 0) wrapped += used + 1 + word.size() > columns ? '\n' : ' ';
      used = used == 0 || used + 1 + word.size() > columns ? word.size() : used + 1 + word.size();
      absl::StrAppend(&wrapped, word);
    }
  }
  return wrapped;
}

// CLI11's help with wrapped lines, a command's first sentence only in the list of commands, and single blank lines.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { label("REQUIRED", "(required)"); }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    while (absl::StrContains(help, "\n\n\n")) help = absl::StrReplaceAll(help, {{"\n\n\n", "\n\n"}});
    while (absl::EndsWith(help, "\n\n")) help.pop_back();
    return help;
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return absl::StrCat("\n", CLI::Formatter::make_usage(app, std::move(name)));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrap(option->get_description(), kHelpColumns - column_width_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string about = command->get_description();
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(),
                             Wrap(about.substr(0, about.find('\n')), kHelpColumns - column_width_), column_width_);
    return out.str();
  }
};

// The command that was typed, with its subcommands: "runahead generate".
const CLI::App& Typed(const CLI::App& app, std::string* path) {
  const CLI::App* typed = &app;
  *path = typed->get_name();
  while (!typed->get_subcommands().empty()) {
    typed = typed->get_subcommands().back();
    absl::StrAppend(path, " ", typed->get_name());
  }
  return *typed;
}

std::string WithHint(std::string message, absl::string_view word, const std::vector<std::string>& names) {
  const std::string hint = ClosestName(word, names);
  if (!hint.empty()) absl::StrAppend(&message, "; did you mean ", hint, "?");
  return message;
}

std::string ExplainCommand(const CLI::App& app, const std::vector<std::string>& unexpected) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  const std::string all = absl::StrCat("the commands are ", absl::StrJoin(names, ", "));
  if (unexpected.empty()) return absl::StrCat("a command is missing; ", all);
  return WithHint(absl::StrCat("there is no command '", unexpected[0], "'; ", all), unexpected[0], names);
}

std::string ExplainUnexpected(const CLI::App& command, const std::string& word) {
  if (!absl::StartsWith(word, "-")) {
    return absl::StrCat("'", word,
                        "' is one word too many: quote a text with blanks, and repeat a flag for each value");
  }
  const std::string flag = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options({})) {
    if (option->nonpositional()) names.push_back(option->get_name());
  }
  return WithHint(absl::StrCat("there is no flag ", flag), flag, names);
}

// "--router ADDR: Where it listens", "TEXT: The text".
std::string Describe(const CLI::Option& option) {
  const std::string& type = option.get_type_name();
  const std::string shown =
      option.get_positional() ? type : absl::StrCat(option.get_name(), type.empty() ? "" : " ", type);
  return absl::StrCat(shown, ": ", option.get_description());
}

std::string Explain(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> unexpected = app.remaining(/*recurse=*/true);
  const bool required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (required && !command.get_subcommands({}).empty()) {
    const bool flag = !unexpected.empty() && absl::StartsWith(unexpected[0], "-");
    return flag ? ExplainUnexpected(command, unexpected[0]) : ExplainCommand(command, unexpected);
  }
  // A misspelt flag is why a required one is missing.
  if (!unexpected.empty()) return ExplainUnexpected(command, unexpected[0]);
  const std::string what = error.what();
  // CLI11's texts have the option first, or after a colon.
  const std::string name = absl::StartsWith(what, "Could not convert: ")
                               ? std::vector<std::string>(absl::StrSplit(what, ' '))[3]
                               : what.substr(0, what.find_first_of(": "));
  const CLI::Option* const option = command.get_option_no_throw(name);
  if (option == nullptr) return what;
  if (required) return absl::StrCat("missing: ", Describe(*option));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (option->count() > 1) return absl::StrCat(name, ": given ", option->count(), " times; allowed: once");
    return absl::StrCat("no value for ", Describe(*option));
  }
  // All options but flags without a value convert and explain by themselves.
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return absl::StrCat(name, ": '", absl::StrJoin(option->results(), " "), "' is neither true nor false");
  }
  return what;
}

}  // namespace

void SetUpCommandLine(CLI::App& app, const std::string& name) {
  app.name(name.substr(name.rfind('/') + 1));
  app.formatter(std::make_shared<HelpFormatter>());
}

int ExitCodeOf(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  std::string path;
  const CLI::App& command = Typed(app, &path);
  std::cerr << path << ": " << Explain(app, command, error) << "\nRun with --help for all options.\n";
  return 2;
}

}  // namespace runahead
