#include "server/tokenizer/jinja/value.h"

#include <algorithm>

#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {
namespace {

int DepthOf(const Value& value) {
  if (const List* list = As<List>(value)) return list->depth;
  return As<Dict>(value) == nullptr ? 0 : As<Dict>(value)->depth;
}

}  // namespace

List::List(std::vector<Value> items, bool tuple) : items(std::move(items)), tuple(tuple) {
  for (const Value& item : this->items) depth = std::max(depth, 1 + DepthOf(item));
}

void Dict::Set(const Text& key, Value value) {
  depth = std::max(depth, 1 + DepthOf(value));
  const auto [at, fresh] = index.try_emplace(ToUtf8(key), items.size());
  if (fresh) items.emplace_back(std::make_shared<const Text>(key), Undefined());
  items[at->second].second = std::move(value);
}

const Value* Dict::Get(const std::string& key) const {
  const auto at = index.find(key);
  return at == index.end() ? nullptr : &items[at->second].second;
}

void Call::Bind(const std::vector<std::string>& names, const std::string& function) {
  if (plain.size() > names.size()) Fail("'", function, "' takes fewer arguments");
  plain.resize(names.size());
  for (auto& [name, value] : named) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) Fail("'", function, "' takes no argument '", name, "'");
    plain[at - names.begin()] = std::move(value);
  }
}

const char* TypeName(const Value& value) {
  constexpr const char* kNames[] = {"undefined", "none",   "a bool", "an integer",  "a float",
                                    "a string",  "a list", "a dict", "a namespace", "a function"};
  return kNames[value.index()];
}

std::string Describe(const Value& value) {
  const Undefined* undefined = As<Undefined>(value);
  if (undefined == nullptr || undefined->name == nullptr) return absl::StrCat("it is ", TypeName(value));
  return absl::StrCat("'", *undefined->name, "' is undefined");
}

bool Truth(const Value& value) {
  if (const auto size = SizeOf(value)) return *size != 0;
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

const Text* WrittenText(const Value& value) {
  if (const Dict* dict = As<Dict>(value)) return dict->came_as.get();
  return As<Text>(value);
}

std::optional<size_t> SizeOf(const Value& value) {
  if (const Text* text = As<Text>(value)) return text->size();
  if (const List* list = As<List>(value)) return list->items.size();
  if (const Dict* dict = As<Dict>(value)) return dict->items.size();
  return std::nullopt;
}

ListPtr ToList(const Value& value, Rendering& r) {
  if (const ListPtr* list = std::get_if<ListPtr>(&value)) return *list;
  if (!SizeOf(value) && !IsUndefined(value)) Fail(TypeName(value), " has no items to go over");
  std::vector<Value> items;
  if (const Text* text = As<Text>(value)) {
    for (const char32_t c : *text) items.push_back(r.Make(Text(1, c)));
  } else if (const Dict* dict = As<Dict>(value)) {
    for (const auto& item : dict->items) items.push_back(item.first);
  }
  return std::get<ListPtr>(r.Make(List(std::move(items))));
}

}  // namespace runahead::jinja
