#include "tests/bench/gpu_report.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace runahead {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + '"';
}

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.6g", value) : "null";
}

void PrintLine(const std::string& line) {
  absl::PrintF("%s\n", line);
  std::fflush(stdout);
}

std::string Json(const Figure& figure, const std::string& dtype) {
  std::string line = absl::StrCat("{\"side\":\"runahead\",\"suite\":", Quoted(figure.suite),
                                  ",\"model\":", Quoted(figure.model), ",\"shape\":", Quoted(figure.shape),
                                  ",\"what\":", Quoted(figure.what), ",\"value\":", Number(figure.value),
                                  ",\"unit\":", Quoted(figure.unit), ",\"dtype\":", Quoted(dtype));
  if (figure.timing.runs > 0) {
    absl::StrAppend(&line, ",\"median\":", Number(figure.timing.median_s),
                    ",\"spread\":", Number(figure.timing.spread_s), ",\"runs\":", figure.timing.runs,
                    ",\"repeats\":", figure.timing.repeats);
  }
  for (const auto& [name, value] : figure.numbers) absl::StrAppend(&line, ",", Quoted(name), ":", Number(value));
  if (!figure.parts.empty()) absl::StrAppend(&line, ",\"parts\":[", absl::StrJoin(figure.parts, ","), "]");
  if (!figure.note.empty()) absl::StrAppend(&line, ",\"note\":", Quoted(figure.note));
  return line + "}";
}

std::string Row(const Figure& figure) {
  std::string row = absl::StrFormat("%-10s %-11s %-26s %-34s %12s %-9s", figure.suite, figure.model, figure.shape,
                                    figure.what, std::isfinite(figure.value) ? Number(figure.value) : "-", figure.unit);
  if (figure.timing.runs > 0) {
    absl::StrAppendFormat(&row, " +-%.1f%% of %d", 100 * figure.timing.spread_s / figure.timing.median_s,
                          figure.timing.runs);
  }
  for (const auto& [name, value] : figure.numbers) absl::StrAppend(&row, "  ", name, " ", Number(value));
  if (!figure.parts.empty()) absl::StrAppend(&row, "  parts ", absl::StrJoin(figure.parts, ","));
  if (!figure.note.empty()) absl::StrAppend(&row, "  (", figure.note, ")");
  return row;
}

}  // namespace

void Report::Begin(const std::string& device, int64_t layers, double seconds) const {
  if (json_) {
    PrintLine(absl::StrCat("{\"side\":\"runahead\",\"suite\":\"device\",\"device\":", Quoted(device), ",\"dtype\":",
                           Quoted(dtype_), ",\"layers\":", layers, ",\"seconds\":", Number(seconds), "}"));
    return;
  }
  PrintLine(absl::StrCat(device, "; ", dtype_, ", ", layers, " layers, about ", Number(seconds),
                         " s a figure; medians, +- the median deviation from them, of so many runs"));
}

void Report::Add(const Figure& figure) const {
  PrintLine(json_ ? Json(figure, dtype_) : Row(figure));
}

void Report::Missing(Figure figure, const std::string& why) const {
  figure.value = std::numeric_limits<double>::quiet_NaN();
  figure.note = absl::StrCat("not measured: ", why);
  Add(figure);
}

}  // namespace runahead
