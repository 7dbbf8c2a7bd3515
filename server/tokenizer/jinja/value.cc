#include "server/tokenizer/jinja/value.h"

#include <algorithm>

#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {
namespace {

int DepthOf(const Value& value) {
  if (const List* list = As<List>(value)) return list->depth;
  const Dict* dict = As<Dict>(value);
  return dict == nullptr ? 0 : dict->depth;
}

}  // namespace

void List::Add(Value value) {
  depth = std::max(depth, 1 + DepthOf(value));
  items.push_back(std::move(value));
}

void Dict::Set(TextPtr key, Value value) {
  depth = std::max(depth, 1 + DepthOf(value));
  const auto [at, fresh] = index.try_emplace(ToUtf8(*key), items.size());
  if (fresh) items.emplace_back(std::move(key), Undefined());
  items[at->second].second = std::move(value);
}

const Value* Dict::Get(const std::string& key) const {
  const auto at = index.find(key);
  return at == index.end() ? nullptr : &items[at->second].second;
}

void Call::Bind(const std::vector<std::string>& names, std::string_view what) {
  if (plain.size() > names.size()) Fail("the ", what, " takes at most ", names.size(), " arguments");
  plain.resize(names.size());
  for (auto& [name, value] : named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) Fail("the ", what, " takes no argument '", name, "'");
    plain[at - names.begin()] = std::move(value);
  }
}

std::string_view TypeName(const Value& value) {
  constexpr std::string_view kNames[] = {"undefined", "none",   "a bool", "an integer",  "a float",
                                         "a string",  "a list", "a dict", "a namespace", "a function"};
  return kNames[value.index()];
}

std::string Describe(const Value& value) {
  const Undefined* undefined = As<Undefined>(value);
  if (undefined == nullptr || undefined->name == nullptr) return Cat("it is ", TypeName(value));
  return Cat("'", *undefined->name, "' is undefined");
}

bool Truth(const Value& value) {
  if (const Text* text = As<Text>(value)) return !text->empty();
  if (const List* list = As<List>(value)) return !list->items.empty();
  if (const Dict* dict = As<Dict>(value)) return !dict->items.empty();
  if (const auto number = ToDouble(value)) return *number != 0;
  return !IsUndefined(value) && As<None>(value) == nullptr;
}

std::optional<int64_t> ToInt(const Value& value) {
  if (const int64_t* whole = As<int64_t>(value)) return *whole;
  if (const bool* truth = As<bool>(value)) return *truth ? 1 : 0;
  return std::nullopt;
}

std::optional<double> ToDouble(const Value& value) {
  if (const auto whole = ToInt(value)) return static_cast<double>(*whole);
  if (const double* real = As<double>(value)) return *real;
  return std::nullopt;
}

ListPtr ToList(const Value& value, Rendering& r) {
  if (const ListPtr* list = std::get_if<ListPtr>(&value)) return *list;
  List list;
  if (const Text* text = As<Text>(value)) {
    r.Step(0, text->size());
    for (const char32_t c : *text) list.Add(r.Make(Text(1, c)));
  } else if (const Dict* dict = As<Dict>(value)) {
    r.Step(0, dict->items.size());
    for (const auto& item : dict->items) list.Add(item.first);
  } else if (!IsUndefined(value)) {
    Fail(TypeName(value), " has no items to go over");
  }
  return std::get<ListPtr>(r.Make(std::move(list)));
}

}  // namespace runahead::jinja
