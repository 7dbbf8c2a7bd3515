#include "server/tokenizer/tool_properties.h"

#include <memory>
#include <utility>
#include <vector>

#include "server/tokenizer/chat_values.h"

namespace runahead {
namespace {

jinja::Value DictValue(jinja::Dict dict) {
  return std::make_shared<const jinja::Dict>(std::move(dict));
}

// The member, where it is a dict; else null.
const jinja::Dict* DictIn(const jinja::Dict& dict, const char* member) {
  const jinja::Value* const value = dict.Get(member);
  return value == nullptr ? nullptr : jinja::As<jinja::Dict>(*value);
}

bool Lacks(const jinja::Dict& dict, const char* member) {
  const jinja::Value* const value = dict.Get(member);
  return value == nullptr || jinja::As<jinja::None>(*value) != nullptr;
}

// Nothing where it has some.
std::optional<jinja::Dict> FunctionWithProperties(const jinja::Dict& function) {
  const jinja::Dict* const given = DictIn(function, "parameters");
  if (given != nullptr && !Lacks(*given, "properties")) return std::nullopt;
  jinja::Dict parameters = given == nullptr ? jinja::Dict() : *given;
  if (Lacks(parameters, "type")) parameters.Set(U"type", TextValue("object", /*own=*/false));
  parameters.Set(U"properties", DictValue({}));
  jinja::Dict changed = function;
  changed.Set(U"parameters", DictValue(std::move(parameters)));
  return changed;
}

std::optional<jinja::Value> ToolWithProperties(const jinja::Value& value) {
  const jinja::Dict* const tool = jinja::As<jinja::Dict>(value);
  if (tool == nullptr) return std::nullopt;
  const jinja::Dict* const function = DictIn(*tool, "function");
  std::optional<jinja::Dict> changed = FunctionWithProperties(function == nullptr ? *tool : *function);
  if (!changed) return std::nullopt;
  if (function == nullptr) return DictValue(*std::move(changed));
  jinja::Dict whole = *tool;
  whole.Set(U"function", DictValue(*std::move(changed)));
  return DictValue(std::move(whole));
}

}  // namespace

std::optional<jinja::Value> ToolsWithProperties(const jinja::Value& tools) {
  const jinja::List* const list = jinja::As<jinja::List>(tools);
  if (list == nullptr) return std::nullopt;
  std::vector<jinja::Value> items = list->items;
  bool any = false;
  for (jinja::Value& item : items) {
    std::optional<jinja::Value> changed = ToolWithProperties(item);
    if (!changed) continue;
    item = *std::move(changed);
    any = true;
  }
  if (!any) return std::nullopt;
  return std::make_shared<const jinja::List>(std::move(items));
}

}  // namespace runahead
