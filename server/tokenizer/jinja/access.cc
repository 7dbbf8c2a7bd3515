// Members, items and slices of values, and how calls of what is built in get their arguments.
#include <algorithm>

#include "absl/strings/str_split.h"
#include "server/tokenizer/jinja/builtins.h"

namespace runahead::jinja {
namespace {

Value Missing(std::string_view name) {
  return Undefined{std::make_shared<const std::string>(name)};
}

Value Method(const Value& object, std::string_view name) {
  if (FindMethod(object, name) == nullptr) return Missing(name);
  return std::make_shared<const Function>(Function{std::string(name), object, /*method=*/true});
}

Value LoopMember(const Value& whole, std::string_view name) {
  const Loop& loop = **As<std::shared_ptr<const Loop>>(whole);
  const std::vector<Value>& items = loop.items->items;
  const int64_t index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return length - index;
  if (name == "revindex0") return length - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index == length - 1;
  if (name == "length") return length;
  if (name == "depth") return int64_t{loop.depth};
  if (name == "depth0") return int64_t{loop.depth - 1};
  if (name == "previtem" && index > 0) return items[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return items[loop.index + 1];
  return Method(whole, name);
}

}  // namespace

Value Member(const Value& object, std::string_view name, Rendering& r) {
  if (IsUndefined(object)) return r.Fail("there is no ", name, " of it: ", Describe(object));
  if (As<std::shared_ptr<const Loop>>(object) != nullptr) return LoopMember(object, name);
  const Value* found = nullptr;
  if (Dict* const* space = As<Dict*>(object)) found = (*space)->Get(name);
  const DictPtr* dict = As<DictPtr>(object);
  if (dict != nullptr && FindMethod(object, name) == nullptr) found = (*dict)->Get(name);
  return found != nullptr ? *found : Method(object, name);
}

Value Item(const Value& object, const Value& index, Rendering& r) {
  if (IsUndefined(object)) return r.Fail("there is no item of it: ", Describe(object));
  if (const Text* name = AsText(index); name != nullptr && !r.Step(name->size())) return Undefined();
  if (const DictPtr* dict = As<DictPtr>(object)) {
    if (const Value* found = (*dict)->Get(index)) return *found;
  }
  if (const Text* name = AsText(index)) {
    return As<DictPtr>(object) == nullptr ? Member(object, name->view(), r) : Method(object, name->view());
  }
  int64_t at = 0;
  if (!ToInt(index, &at)) return Undefined();
  if (const ListPtr* list = As<ListPtr>(object)) {
    const std::vector<Value>& items = (*list)->items;
    if (at < 0) at += static_cast<int64_t>(items.size());
    return at >= 0 && at < static_cast<int64_t>(items.size()) ? items[at] : Missing(Cat("[", at, "]"));
  }
  const Text* text = AsText(object);
  if (text == nullptr || !r.Step(text->size())) return Undefined();
  if (at < 0) at += static_cast<int64_t>(CountChars(text->view()));
  const size_t begin = at < 0 ? text->size() : OffsetOfChar(text->view(), at);
  if (begin == text->size()) return Missing(Cat("[", at, "]"));
  size_t bytes = 0;
  CharAt(text->view(), begin, &bytes);
  return r.Make(text->Cut(begin, bytes));
}

Value Slice(const Value& object, std::optional<int64_t> from, std::optional<int64_t> to, int64_t step, Rendering& r) {
  const Text* text = AsText(object);
  const ListPtr* list = As<ListPtr>(object);
  if (text == nullptr && list == nullptr) return r.Fail("it cannot be sliced: ", Describe(object));
  if (step == 0) return r.Fail("the step of a slice is 0");
  if (!r.Step(text == nullptr ? 0 : text->size())) return Undefined();
  const auto size = static_cast<int64_t>(text == nullptr ? (*list)->items.size() : CountChars(text->view()));
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> at, int64_t absent) {
    if (!at) return absent;
    return std::clamp(*at < 0 ? *at + size : *at, low, high);
  };
  const int64_t begin = bound(from, step > 0 ? low : high), end = bound(to, step > 0 ? high : low);
  if (text != nullptr && step == 1) {
    const size_t first = OffsetOfChar(text->view(), begin), last = OffsetOfChar(text->view(), end);
    return r.Make(first < last ? text->Cut(first, last - first) : Text());
  }
  const ListPtr items = ToList(object, r);
  List result;
  if (list != nullptr) result.tuple = (*list)->tuple;
  for (int64_t i = begin; (step > 0 ? i < end : i > end) && r.Step(); i += step) {
    result.items.push_back(items->items[i]);
    if ((step > 0 ? size - i : i + 1) <= std::abs(step))
      break;  // the next one is beyond, and may be beyond all numbers
  }
  return text == nullptr ? r.Make(std::move(result)) : Joined(Text(), result.items, r);
}

Value Run(const Builtin* builtin, std::string_view kind, std::string_view name, Value self, Arguments given,
          Rendering& r) {
  if (builtin == nullptr) return r.Fail("the ", kind, " '", name, "' is not known here");
  if (builtin->parameters != "*") {
    const std::vector<std::string> parameters =
        absl::StrSplit(std::string(builtin->parameters), ' ', absl::SkipEmpty());
    if (given.plain.size() > parameters.size()) {
      return r.Fail("the ", kind, " '", name, "' takes at most ", parameters.size(), " arguments");
    }
    given.plain.resize(parameters.size());
    for (auto& [parameter, value] : given.named) {
      const auto at = std::find(parameters.begin(), parameters.end(), parameter);
      if (at == parameters.end()) return r.Fail("the ", kind, " '", name, "' takes no argument '", parameter, "'");
      given.plain[at - parameters.begin()] = std::move(value);
    }
  }
  // About what it takes to look at all of `self`; an item of a dict is a copy of two values, and a look into a table.
  constexpr size_t kOfDictItem = 8;
  const Text* text = AsText(self);
  const ListPtr* list = As<ListPtr>(self);
  const DictPtr* dict = As<DictPtr>(self);
  const size_t items = list != nullptr   ? (*list)->items.size()
                       : dict != nullptr ? kOfDictItem * (*dict)->items.size()
                                         : 0;
  if (!r.Step(text == nullptr ? 0 : text->size(), items)) return Undefined();
  Call call{r, std::move(self), std::move(given)};
  return builtin->run(call);
}

}  // namespace runahead::jinja
