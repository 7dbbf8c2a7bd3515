#include "client/plan/table_picture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/plan/table_report.h"

namespace runahead {
namespace {

// In pixels.
constexpr double kWidth = 960;
constexpr double kLeft = 90;    // of bars and chart; labels stand before it
constexpr double kRight = 820;  // labels stand behind it
constexpr double kRowHeight = 26;
constexpr double kBarHeight = 20;
constexpr double kMinChartHeight = 300;
constexpr double kCharacter = 7;  // about, at the size of labels

// Tell apart what stands side by side, also for the colour-blind: after Okabe and Ito's, darkened for white text.
constexpr const char* kColours[] = {"#0072b2", "#b8690b", "#007f5f", "#a65a8a", "#3d8fc0", "#b34700", "#555555"};

const char* ColourOf(size_t index) {
  return kColours[index % std::size(kColours)];
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The document while it grows.
class Drawing {
 public:
  double y = 0;  // how far down it is filled

  void Text(double x, double at_y, const std::string& text, const std::string& attributes = "") {
    absl::StrAppendFormat(&body_, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, at_y, Spaced(attributes),
                          Escaped(text));
  }
  void Rect(double x, double at_y, double width, double height, const std::string& attributes) {
    absl::StrAppendFormat(&body_, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"%s/>\n", x, at_y, width,
                          height, Spaced(attributes));
  }
  void Line(double x1, double y1, double x2, double y2, const std::string& attributes) {
    absl::StrAppendFormat(&body_, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"%s/>\n", x1, y1, x2, y2,
                          Spaced(attributes));
  }
  void Circle(double x, double at_y, const std::string& attributes) {
    absl::StrAppendFormat(&body_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"%s/>\n", x, at_y, Spaced(attributes));
  }

  std::string Document() const {
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
        "fill=\"white\"/>\n%s</svg>\n",
        kWidth, y, kWidth, y, body_);
  }

 private:
  static std::string Spaced(const std::string& attributes) { return attributes.empty() ? "" : " " + attributes; }

  std::string body_;
};

void DrawHead(const PartitionFile& file, Drawing& drawing) {
  const char* attributes = "font-size=\"16\" font-weight=\"bold\"";
  drawing.y = 10;
  for (const std::string& line : DescribeTable(file)) {
    drawing.y += 20;
    drawing.Text(20, drawing.y, line, attributes);
    attributes = "fill=\"#555555\"";
  }
}

void DrawSection(const std::string& title, Drawing& drawing) {
  drawing.y += 36;
  drawing.Text(20, drawing.y, title, "font-size=\"14\" font-weight=\"bold\"");
  drawing.y += 10;
}

void DrawBar(const TableRow& row, Drawing& drawing) {
  drawing.Text(kLeft - 8, drawing.y + 15, absl::StrCat(row.entry.tokens), "text-anchor=\"end\"");
  double x = kLeft;
  for (size_t i = 0; i < row.parts.size(); ++i) {
    const double share = static_cast<double>(row.parts[i]) / static_cast<double>(row.entry.tokens);
    const double width = share * (kRight - kLeft);
    drawing.Rect(x, drawing.y, width, kBarHeight, absl::StrCat("fill=\"", ColourOf(i), "\" stroke=\"white\""));
    std::string label = absl::StrFormat("%d (%.0f%%)", row.parts[i], 100 * share);
    if (static_cast<double>(label.size()) * kCharacter > width) label = absl::StrCat(row.parts[i]);
    if (static_cast<double>(label.size()) * kCharacter <= width) {
      drawing.Text(x + width / 2, drawing.y + 14, label, "text-anchor=\"middle\" fill=\"white\"");
    }
    x += width;
  }
  if (const auto seconds = row.ttft_s()) drawing.Text(kRight + 8, drawing.y + 15, SecondsText(*seconds));
  drawing.y += kRowHeight;
}

// Where a value stands on a logarithmic axis from `low`, at `bottom`, to `high`, at `top`.
struct LogAxis {
  double low, high, bottom, top;
  double At(double value) const {
    const double share = std::log(std::max(value, low) / low) / std::log(high / low);
    return bottom + share * (top - bottom);
  }
};

// From a round number below the least to one above the largest time.
LogAxis AxisOf(const std::vector<TableRow>& timed, double bottom, double top) {
  double low = *timed[0].ttft_s(), high = low;
  for (const TableRow& row : timed) {
    for (const auto& seconds : {row.entry.measured_ttft_s, row.entry.predicted_ttft_s}) {
      if (!seconds) continue;
      low = std::min(low, *seconds);
      high = std::max(high, *seconds + row.entry.spread_s.value_or(0));
    }
  }
  const auto decade = [](double value) { return std::pow(10, std::floor(std::log10(value))); };
  const double below = decade(low / 1.05), above = decade(high * 1.05);
  const auto step = [](double value, double unit) { return value >= 5 * unit ? 5 : value >= 2 * unit ? 2 : 1; };
  const auto next = [](double value, double unit) { return value <= 2 * unit ? 2 : value <= 5 * unit ? 5 : 10; };
  return {step(low / 1.05, below) * below, next(high * 1.05, above) * above, bottom, top};
}

void DrawAxes(const LogAxis& axis, const std::map<int, double>& x_of_width, Drawing& drawing) {
  for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high; decade *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * decade;
      if (value < axis.low * 0.999 || value > axis.high * 1.001) continue;
      drawing.Line(kLeft, axis.At(value), kRight, axis.At(value), "stroke=\"#dddddd\"");
      drawing.Text(kLeft - 8, axis.At(value) + 4, SecondsText(value), "text-anchor=\"end\"");
    }
  }
  for (const auto& [width, x] : x_of_width) {
    drawing.Text(x, axis.bottom + 18, absl::StrCat(width), "text-anchor=\"middle\"");
  }
  drawing.Text((kLeft + kRight) / 2, axis.bottom + 36, "workers of the chain", "text-anchor=\"middle\"");
}

// The times of one length; `rows` by width.
void DrawLength(const std::vector<TableRow>& rows, const LogAxis& axis, const std::map<int, double>& x_of_width,
                const char* colour, Drawing& drawing) {
  const std::string stroke = absl::StrCat("stroke=\"", colour, "\"");
  for (size_t i = 0; i < rows.size(); ++i) {
    const double x = x_of_width.at(rows[i].entry.width);
    if (i > 0) {
      const bool measured = rows[i - 1].entry.measured_ttft_s && rows[i].entry.measured_ttft_s;
      drawing.Line(x_of_width.at(rows[i - 1].entry.width), axis.At(*rows[i - 1].ttft_s()), x,
                   axis.At(*rows[i].ttft_s()), absl::StrCat(stroke, measured ? "" : " stroke-dasharray=\"5 4\""));
    }
    if (const auto predicted = rows[i].entry.predicted_ttft_s) {
      drawing.Circle(x, axis.At(*predicted), absl::StrCat(stroke, " fill=\"white\""));
    }
    if (const auto measured = rows[i].entry.measured_ttft_s) {
      const double spread = rows[i].entry.spread_s.value_or(0);
      drawing.Line(x, axis.At(*measured - spread), x, axis.At(*measured + spread),
                   absl::StrCat(stroke, " stroke-width=\"2\""));
      drawing.Circle(x, axis.At(*measured), absl::StrCat("fill=\"", colour, "\""));
    }
  }
}

void DrawTimes(const std::vector<TableRow>& timed, Drawing& drawing) {
  std::map<int64_t, std::vector<TableRow>> by_tokens;
  std::map<int, double> x_of_width;
  for (const TableRow& row : timed) {
    by_tokens[row.entry.tokens].push_back(row);
    x_of_width[row.entry.width] = 0;
  }
  size_t place = 0;
  for (auto& [width, x] : x_of_width) {
    x = kLeft + (static_cast<double>(place++) + 0.5) * (kRight - kLeft) / static_cast<double>(x_of_width.size());
  }
  DrawSection("Time to first token by width (full: measured, hollow: predicted)", drawing);
  const double top = drawing.y + 10;
  const double bottom = top + std::max(kMinChartHeight, kRowHeight * static_cast<double>(by_tokens.size()));
  const LogAxis axis = AxisOf(timed, bottom, top);
  DrawAxes(axis, x_of_width, drawing);
  double legend = top + 12;
  size_t index = by_tokens.size();
  for (auto length = by_tokens.rbegin(); length != by_tokens.rend(); ++length) {  // the slowest on top, as in the chart
    const char* const colour = ColourOf(--index);
    DrawLength(length->second, axis, x_of_width, colour, drawing);
    drawing.Rect(kRight + 12, legend - 9, 10, 10, absl::StrCat("fill=\"", colour, "\""));
    drawing.Text(kRight + 28, legend, absl::StrCat(length->first, " tokens"));
    legend += 18;
  }
  drawing.y = bottom + 40;
}

}  // namespace

std::string TableSvg(const PartitionFile& file) {
  const std::vector<TableRow> rows = RowsOf(file);
  Drawing drawing;
  DrawHead(file, drawing);
  int width = 0;
  for (const TableRow& row : rows) {
    if (row.entry.width != width) {
      width = row.entry.width;
      DrawSection(absl::StrCat("Width ", width, ": tokens of each worker by length of the prompt, head first"),
                  drawing);
    }
    DrawBar(row, drawing);
  }
  std::vector<TableRow> timed;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(timed),
               [](const TableRow& row) { return row.ttft_s().has_value(); });
  if (!timed.empty()) DrawTimes(timed, drawing);
  drawing.y += 20;
  return drawing.Document();
}

}  // namespace runahead
