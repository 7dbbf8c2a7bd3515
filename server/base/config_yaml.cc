// The YAML side of ConfigSchema: the only file that knows yaml-cpp.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/config.h"
#include "server/base/printable.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

// Far above any real file. Aliases multiply: ten lines of them can stand for billions of values.
constexpr int kMaxValues = 100'000;
constexpr int kMaxDepth = 32;

class Converter {
 public:
  explicit Converter(const std::string& name) : name_(name) {}

  absl::StatusOr<ConfigValue> Convert(const YAML::Node& node, int depth) {
    ConfigValue value;
    value.where = Where(node);
    if (++values_ > kMaxValues || depth > kMaxDepth) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": too large; allowed: ", kMaxValues,
                                                     " values with aliases expanded, nested ", kMaxDepth, " deep"));
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        value.kind = ConfigValue::Kind::kScalar;
        value.scalar = node.Scalar();
        value.quoted = node.Tag() == "!";  // yaml-cpp's mark of quoted and block scalars
        break;
      case YAML::NodeType::Sequence:
        value.kind = ConfigValue::Kind::kList;
        for (const YAML::Node& item : node) {
          RUNAHEAD_ASSIGN_OR_RETURN(value.items.emplace_back(), Convert(item, depth + 1));
        }
        break;
      case YAML::NodeType::Map:
        value.kind = ConfigValue::Kind::kMap;
        for (const auto& entry : node) {
          if (!entry.first.IsScalar()) {
            return absl::InvalidArgumentError(absl::StrCat(Where(entry.first), ": a key is not a plain word"));
          }
          RUNAHEAD_ASSIGN_OR_RETURN(ConfigValue item, Convert(entry.second, depth + 1));
          item.where = Where(entry.first);  // the line of the key: where an editor should go
          item.key = entry.first.Scalar();
          value.items.push_back(std::move(item));
        }
        break;
    }
    return value;
  }

 private:
  std::string Where(const YAML::Node& node) const { return absl::StrCat(name_, ":", node.Mark().line + 1); }

  const std::string& name_;
  int values_ = 0;
};

// Whether a document has anything in it.
class ContentWatch final : public YAML::EventHandler {
 public:
  bool seen() const { return seen_; }

 private:
  using Mark = YAML::Mark;
  using Anchor = YAML::anchor_t;
  using Style = YAML::EmitterStyle::value;
  void OnDocumentStart(const Mark&) override { seen_ = false; }
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, Anchor) override {}
  void OnAlias(const Mark&, Anchor) override { seen_ = true; }
  void OnScalar(const Mark&, const std::string&, Anchor, const std::string&) override { seen_ = true; }
  void OnSequenceStart(const Mark&, const std::string&, Anchor, Style) override { seen_ = true; }
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, Anchor, Style) override { seen_ = true; }
  void OnMapEnd() override {}

  bool seen_ = false;
};

// An empty one after the only one does not count. Not YAML::LoadAll: that never ends on a text that begins with a
// comma, where the parser finds one empty document after the other.
bool HasMoreThanOneDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  ContentWatch first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return false;
  return second.seen() || !first.seen();
}

absl::Status SyntaxError(const std::string& name, const YAML::Exception& error) {
  return OneLine(
      absl::InvalidArgumentError(absl::StrCat(name, ":", error.mark.line + 1, ": not valid YAML: ", error.msg)));
}

}  // namespace

absl::StatusOr<ConfigValue> ParseConfigText(const std::string& text, const std::string& name) {
  try {
    if (HasMoreThanOneDocument(text)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name,
          ": holds more than one YAML document; allowed: one (no line of ---, and no comma before the first key)"));
    }
    return Converter(name).Convert(YAML::Load(text), 0);
  } catch (const YAML::Exception& error) {
    return SyntaxError(name, error);
  }
}

absl::Status ReadConfigText(const std::string& text, const std::string& name, ConfigSchema& schema) {
  RUNAHEAD_ASSIGN_OR_RETURN(const ConfigValue root, ParseConfigText(text, name));
  return schema.Apply(root);
}

absl::Status ReadConfigFile(const std::string& path, ConfigSchema& schema) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ReadConfigText(text, path, schema);
}

}  // namespace runahead
