#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {
namespace {

constexpr int kMaxDepth = 1000;      // of nodes that run in one another; a level needs some hundred bytes of stack
constexpr int kMaxValueDepth = 100;  // of lists and dicts in one another
constexpr size_t kSmall = 256;       // bytes of an object, about, with what it is allocated with

}  // namespace

const Value* Scope::Find(const std::string& name) const {
  const auto at = names.find(name);
  if (at != names.end()) return &at->second;
  return around == nullptr ? nullptr : around->Find(name);
}

InnerScope::InnerScope(Rendering& r, const Scope* around) : r_(r), outer_(r.scope), scope_{around} {
  r.scope = &scope_;
}

Value Node::operator()(Rendering& r) const {
  if (r.depth_ >= kMaxDepth) Fail("the template goes deeper than ", kMaxDepth, " levels");
  r.Step();
  const size_t outer = std::exchange(r.place, place());
  ++r.depth_;
  Value value = code_->run(r);
  --r.depth_;
  r.place = outer;
  return value;
}

void Rendering::Step(size_t characters, size_t items) {
  constexpr size_t kCharactersPerStep = 256;
  constexpr int64_t kStepsBetween = 4096;
  const int64_t before = steps_;
  steps_ += static_cast<int64_t>(1 + items + characters / kCharactersPerStep);
  if (before / kStepsBetween != steps_ / kStepsBetween) {
    if (absl::Status status = keep_going_(); !status.ok()) throw Failure{std::move(status), /*complete=*/true};
  }
  if (steps_ > limits_.steps) Fail("the template takes more than ", limits_.steps, " steps");
}

void Rendering::FitText(size_t characters) const {
  if (characters > limits_.text) Fail("a text is longer than ", limits_.text, " characters");
}

void Rendering::Keep(size_t bytes) {
  memory_ += static_cast<int64_t>(bytes);
  if (memory_ > limits_.memory) Fail("the template's values take more than ", limits_.memory, " bytes");
}

template <typename T>
Value Rendering::Make(T value) {
  size_t bytes = kSmall;
  if constexpr (std::is_same_v<T, Text>) {
    FitText(value.size());
    bytes += value.size() * sizeof(char32_t);
  } else {
    if (value.depth > kMaxValueDepth) Fail("lists and dicts are nested deeper than ", kMaxValueDepth);
    bytes += value.items.size() * (std::is_same_v<T, List> ? sizeof(Value) : kSmall);
  }
  Keep(bytes);
  return std::shared_ptr<const T>(new T(std::move(value)), [this, bytes](const T* gone) {
    memory_ -= static_cast<int64_t>(bytes);
    delete gone;
  });
}
template Value Rendering::Make(Text value);
template Value Rendering::Make(List value);
template Value Rendering::Make(Dict value);

Dict* Rendering::MakeNamespace(Dict dict) {
  Keep((1 + dict.items.size()) * kSmall);
  return &namespaces_.emplace_back(std::move(dict));
}

void Rendering::SetMember(Dict& space, const std::string& name, Value value) {
  if (!space.index.contains(name)) Keep(kSmall);
  space.Set(FromUtf8(name, /*own=*/true), std::move(value));
}

void Rendering::Write(const Text& text) {
  written_ += text.size();
  Step(text.size());
  FitText(written_);
  output += text;
}

Value Rendering::Capture(const Node& node, const Scope* around) {
  const InnerScope inner(*this, around);
  Text outer = std::exchange(output, Text());
  node(*this);
  return Make(std::exchange(output, std::move(outer)));
}

}  // namespace runahead::jinja
