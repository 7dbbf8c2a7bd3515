#include "server/tokenizer/jinja/rendering.h"

namespace runahead::jinja {
const Value* Scope::Find(const std::string& name) const {
  const auto at = names.find(name);
  if (at != names.end()) return &at->second;
  return around == nullptr ? nullptr : around->Find(name);
}

Value Node::operator()(Rendering& r) const {
  constexpr int kMaxDepth = 1000;  // of nodes that run in one another; a level needs some hundred bytes of stack
  if (r.depth_ >= kMaxDepth) Fail("the template goes deeper than ", kMaxDepth, " levels");
  r.Step();
  const size_t outer = std::exchange(r.place, place());
  ++r.depth_;
  Value value = (*run_)(r);
  --r.depth_;
  r.place = outer;
  return value;
}

void Rendering::Step(size_t characters, size_t items) {
  constexpr size_t kCharactersPerStep = 128;
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

Dict* Rendering::MakeNamespace() {
  Keep(kSmall);
  return &namespaces_.emplace_back();
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
  const Scope inner(*this, around);
  Text outer = std::exchange(output, Text());
  node(*this);
  return Make(std::exchange(output, std::move(outer)));
}

}  // namespace runahead::jinja
