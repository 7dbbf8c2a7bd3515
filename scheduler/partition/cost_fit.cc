#include "scheduler/partition/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int kConstants = 5;
constexpr std::array<const char*, kConstants> kNames = {"fixed_s", "linear_s_per_token", "attention_s_per_token_pair",
                                                        "floor_s", "link_latency_s"};
constexpr int kFloor = 3;
constexpr int kMaxFitSteps = 200;
// A constant whose effect on the errors is, to this share, a mixture of the others' cannot be told from them.
constexpr double kLeastPivot = 1e-9;
// A fit is better than another when its sum of squares is by such a share smaller, beyond what rounding does to a sum
// that should be 0.
constexpr double kLeastImprovement = 0.01;
constexpr double kRoundingError = 1e-12;

using Constants = std::array<double, kConstants>;
using Matrix = std::vector<std::vector<double>>;

CostModel With(CostModel model, const Constants& x, const std::vector<int>& chosen) {
  for (int c : chosen) {
    if (c == 0) model.fixed_s = x[0];
    if (c == 1) model.linear_s_per_token = x[1];
    if (c == 2) model.attention_s_per_token_pair = x[2];
    if (c == 3) model.floor_s = x[3];
    for (LinkCost& link : model.links) {
      if (c == 4) link.latency_s = x[4];
    }
  }
  return model;
}

// x for `matrix` x = `right`, or nothing when a pivot is below `least` of its diagonal. By Cholesky's factors.
bool Solve(Matrix matrix, std::vector<double> right, double least, std::vector<double>* x, int* failed) {
  const int n = static_cast<int>(right.size());
  for (int i = 0; i < n; ++i) {
    const double diagonal = matrix[i][i];
    for (int k = 0; k < i; ++k) matrix[i][i] -= matrix[i][k] * matrix[i][k];
    if (!(matrix[i][i] > least * diagonal)) {
      *failed = i;
      return false;
    }
    matrix[i][i] = std::sqrt(matrix[i][i]);
    for (int j = i + 1; j < n; ++j) {
      for (int k = 0; k < i; ++k) matrix[j][i] -= matrix[j][k] * matrix[i][k];
      matrix[j][i] /= matrix[i][i];
    }
    for (int k = 0; k < i; ++k) right[i] -= matrix[i][k] * right[k];
    right[i] /= matrix[i][i];
  }
  for (int i = n - 1; i >= 0; --i) {
    for (int k = i + 1; k < n; ++k) right[i] -= matrix[k][i] * right[k];
    right[i] /= matrix[i][i];
  }
  *x = std::move(right);
  return true;
}

class Fitter {
 public:
  Fitter(const CostModel& start, absl::Span<const TimedRun> runs, std::vector<int> chosen)
      : start_(start), runs_(runs), chosen_(std::move(chosen)) {
    double tokens = 0, seconds = 0, hops = 0;
    for (const TimedRun& run : runs_) {
      tokens += static_cast<double>(std::accumulate(run.parts.begin(), run.parts.end(), int64_t{0})) /
                static_cast<double>(run.parts.size());
      seconds += run.seconds;
      hops += static_cast<double>(run.parts.size());
    }
    const double n = static_cast<double>(runs_.size());
    // Of the size at which a constant would be a third of an average run.
    scale_ = {seconds / n / 3, seconds / tokens / 3, seconds / tokens / (tokens / n) / 3, seconds / n / 3,
              seconds / n / 3 / (hops / n * static_cast<double>(start_.layers))};
  }

  // Errors of all runs, predicted / measured - 1.
  absl::StatusOr<std::vector<double>> Errors(const Constants& x) const {
    CostModel model = With(start_, x, chosen_);
    std::vector<double> errors;
    for (size_t i = 0; i < runs_.size(); ++i) {
      for (size_t k = 0; k < model.links.size(); ++k) {
        const double own = runs_[i].link_bytes_per_s;
        model.links[k].bytes_per_s = own > 0 ? own : start_.links[k].bytes_per_s;
      }
      const absl::StatusOr<SimulatedRun> run = SimulateChain(model, runs_[i].schedule, runs_[i].parts);
      if (!run.ok()) {
        return absl::Status(run.status().code(), absl::StrCat("runs[", i, "]: ", run.status().message()));
      }
      errors.push_back(run->ttft_s / runs_[i].seconds - 1);
    }
    return errors;
  }

  // The floor has no slope where nothing lies on it, so its start decides: none, or one of the times measured.
  absl::StatusOr<Constants> Best() const {
    std::vector<double> floors = {0};
    if (std::find(chosen_.begin(), chosen_.end(), kFloor) != chosen_.end()) {
      for (const TimedRun& run : runs_) floors.push_back(run.seconds);
      std::sort(floors.begin(), floors.end());
      floors.erase(std::unique(floors.begin(), floors.end()), floors.end());
    }
    Constants best = {};
    double least = std::numeric_limits<double>::infinity();
    for (double floor : floors) {
      Constants x = scale_;
      x[kFloor] = floor;
      RUNAHEAD_ASSIGN_OR_RETURN(const double sum, Descend(&x));
      // A floor must explain something.
      if (sum < least * (1 - kLeastImprovement) - kRoundingError) {
        least = sum;
        best = x;
      }
    }
    return best;
  }

  // The first constant that the runs do not tell from those before it, or -1.
  absl::StatusOr<int> Undetermined(const Constants& x) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<double> errors, Errors(x));
    RUNAHEAD_ASSIGN_OR_RETURN(const Matrix slopes, Slopes(x, errors, chosen_));
    std::vector<double> ignored;
    int failed = 0;
    const auto [normal, right] = Normal(slopes, errors);
    return Solve(normal, right, kLeastPivot, &ignored, &failed) ? -1 : chosen_[failed];
  }

 private:
  // d error / d constant, in units of scale_. The simulation is piecewise linear in each, so a small step is exact.
  absl::StatusOr<Matrix> Slopes(const Constants& x, const std::vector<double>& errors,
                                const std::vector<int>& constants) const {
    constexpr double kStep = 1e-6;
    Matrix slopes;
    for (int c : constants) {
      Constants moved = x;
      moved[c] += kStep * scale_[c];
      RUNAHEAD_ASSIGN_OR_RETURN(std::vector<double> column, Errors(moved));
      for (size_t i = 0; i < column.size(); ++i) column[i] = (column[i] - errors[i]) / kStep;
      slopes.push_back(std::move(column));
    }
    return slopes;
  }

  static std::pair<Matrix, std::vector<double>> Normal(const Matrix& slopes, const std::vector<double>& errors) {
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    Matrix normal(slopes.size(), std::vector<double>(slopes.size()));
    std::vector<double> right;
    for (size_t i = 0; i < slopes.size(); ++i) {
      for (size_t j = 0; j < slopes.size(); ++j) normal[i][j] = dot(slopes[i], slopes[j]);
      right.push_back(-dot(slopes[i], errors));
    }
    return {normal, right};
  }

  // Levenberg and Marquardt's damped steps; a constant at 0 that wants to fall is held there. Returns the sum of
  // squares reached.
  absl::StatusOr<double> Descend(Constants* x) const {
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<double> errors, Errors(*x));
    double sum = std::inner_product(errors.begin(), errors.end(), errors.begin(), 0.0);
    double damping = 1e-3;
    for (int step = 0; step < kMaxFitSteps && damping < 1e12; ++step) {
      RUNAHEAD_ASSIGN_OR_RETURN(const Matrix all, Slopes(*x, errors, chosen_));
      std::vector<int> moving;
      Matrix slopes;
      for (size_t i = 0; i < chosen_.size(); ++i) {
        const double rise = std::inner_product(all[i].begin(), all[i].end(), errors.begin(), 0.0);
        const double length = std::inner_product(all[i].begin(), all[i].end(), all[i].begin(), 0.0);
        if (length == 0 || ((*x)[chosen_[i]] <= 0 && rise >= 0)) continue;
        moving.push_back(chosen_[i]);
        slopes.push_back(all[i]);
      }
      if (moving.empty()) break;
      const auto [normal, right] = Normal(slopes, errors);
      const double before = sum;
      for (bool better = false; !better && damping < 1e12; damping *= better ? 0.1 : 10) {
        Matrix damped = normal;
        for (size_t i = 0; i < moving.size(); ++i) damped[i][i] *= 1 + damping;
        std::vector<double> move;
        int failed = 0;
        if (!Solve(damped, right, 0, &move, &failed)) continue;
        Constants tried = *x;
        for (size_t i = 0; i < moving.size(); ++i) {
          tried[moving[i]] = std::max(0.0, tried[moving[i]] + move[i] * scale_[moving[i]]);
        }
        RUNAHEAD_ASSIGN_OR_RETURN(std::vector<double> tried_errors, Errors(tried));
        const double tried_sum =
            std::inner_product(tried_errors.begin(), tried_errors.end(), tried_errors.begin(), 0.0);
        if (!(tried_sum < sum)) continue;
        better = true;
        *x = tried;
        errors = std::move(tried_errors);
        sum = tried_sum;
      }
      if (before - sum <= 1e-12 * before) break;
    }
    return sum;
  }

  const CostModel& start_;
  const absl::Span<const TimedRun> runs_;
  const std::vector<int> chosen_;
  Constants scale_;
};

std::string Describe(const TimedRun& run, const FitResidual& residual) {
  return absl::StrFormat("%s of %d tokens on %d workers: measured %.4g s, predicted %.4g s", ScheduleName(run.schedule),
                         std::accumulate(run.parts.begin(), run.parts.end(), int64_t{0}), run.parts.size(), run.seconds,
                         residual.predicted_s);
}

void AddDoubts(absl::Span<const TimedRun> runs, size_t constants, int undetermined, CostFit* fit) {
  if (runs.size() < constants) {
    fit->doubts.push_back(absl::StrCat(runs.size(), " timings for ", constants, " constants: measure more lengths"));
  }
  if (undetermined >= 0) {
    fit->doubts.push_back(absl::StrCat(kNames[undetermined], ": these timings do not determine it"));
  }
  if (fit->rms_error > kPoorRmsError) {
    fit->doubts.push_back(absl::StrFormat("the errors are %.1f%% in root mean square, more than %.0f%%",
                                          100 * fit->rms_error, 100 * kPoorRmsError));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (std::abs(fit->residuals[i].error) <= kPoorWorstError) continue;
    fit->doubts.push_back(absl::StrFormat("%s, %+.1f%%, more than %.0f%%", Describe(runs[i], fit->residuals[i]),
                                          100 * fit->residuals[i].error, 100 * kPoorWorstError));
  }
}

}  // namespace

absl::StatusOr<CostFit> FitCostModel(const CostModel& start, absl::Span<const TimedRun> runs, const FitChoice& choice) {
  if (runs.empty()) return absl::InvalidArgumentError("runs: none given");
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].seconds > 0 && std::isfinite(runs[i].seconds)) continue;
    return absl::InvalidArgumentError(absl::StrCat("runs[", i, "]: ", runs[i].seconds, " s is not above 0"));
  }
  const std::array<bool, kConstants> wanted = {choice.fixed, choice.linear, choice.attention, choice.floor,
                                               choice.latency};
  std::vector<int> chosen;
  for (int c = 0; c < kConstants; ++c) {
    if (wanted[c]) chosen.push_back(c);
  }
  if (chosen.empty()) return absl::InvalidArgumentError("no constant is chosen");
  const size_t constants = chosen.size();
  const Fitter fitter(start, runs, chosen);
  RUNAHEAD_RETURN_IF_ERROR(fitter.Errors({}).status());
  RUNAHEAD_ASSIGN_OR_RETURN(const Constants x, fitter.Best());
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<double> errors, fitter.Errors(x));
  RUNAHEAD_ASSIGN_OR_RETURN(const int undetermined, fitter.Undetermined(x));
  CostFit fit{With(start, x, chosen), {}, 0, 0, {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    fit.residuals.push_back({runs[i].seconds * (1 + errors[i]), errors[i]});
    fit.rms_error += errors[i] * errors[i] / static_cast<double>(runs.size());
    fit.worst_error = std::max(fit.worst_error, std::abs(errors[i]));
  }
  fit.rms_error = std::sqrt(fit.rms_error);
  AddDoubts(runs, constants, undetermined, &fit);
  return fit;
}

}  // namespace runahead
