// What Python makes of numbers, and its methods of strings, and Jinja's filters, of text. Every character of a text
// stays whose it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "server/tokenizer/marked_text.h"

namespace runahead {

using OnPart = absl::FunctionRef<void(size_t place, size_t size)>;

// What Python's split() takes for white space: Unicode's, and four separators of ASCII.
bool IsSpace(char32_t c);
// What Python's splitlines() takes for the end of a line.
bool EndsLine(char32_t c);

// Without white space, or the characters of `chars` if it is not null, at the ends that are named.
MarkedText Strip(const MarkedText& text, const MarkedText* chars, bool left, bool right);
// One character to one; of those that become two, only the German sharp s does.
MarkedText ToCase(const MarkedText& text, bool upper);
// In lower case, but for the first letter, or that of every word.
MarkedText Capitalize(const MarkedText& text, bool every_word);
// With `indent` before every line, but not before the first one and those that are empty unless that is said. All ends
// of lines become \n, of the template; one at the very end does not count if it is \r.
MarkedText Indent(MarkedText text, const MarkedText& indent, bool first, bool empty);
// As it is written in Python or in JSON, maybe with ASCII alone. What is added to it is not the template's.
enum class Quotes { kPython, kJson, kAsciiJson };
MarkedText Quote(const MarkedText& text, Quotes quotes);

// Whether the one stands in the other. Takes time linear in both, as the next two.
bool IsPart(const MarkedText& part, const MarkedText& text);
// The last place of the one in the other, which may be in part the template's own only where `own`.
std::optional<size_t> LastPlace(const MarkedText& part, const MarkedText& text, bool own);
// The place and size of each part between the first `most` places of `separator`, which is not empty; -1: all.
void ForBetween(const MarkedText& text, const MarkedText& separator, int64_t most, OnPart on_part);
// The same of all that is between white space.
void ForWords(const MarkedText& text, OnPart on_part);

// a + b, or with -, * or %, which rounds down and whose `b` is not 0. Nothing beyond 64 bits.
std::optional<int64_t> Compute(int64_t a, char symbol, int64_t b);
// Where [from:to:step] begins and ends in what has this size. `step` is not 0.
std::pair<int64_t, int64_t> SliceBounds(int64_t size, std::optional<int64_t> from, std::optional<int64_t> to,
                                        int64_t step);
// The number that the text is, without what is behind the point. Nothing where it is none, or is beyond 64 bits.
std::optional<int64_t> WholeNumber(const MarkedText& text);
// The shortest digits that give the number back.
std::string FloatText(double number);

}  // namespace runahead
