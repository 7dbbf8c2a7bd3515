#include "server/router/otlp_metrics.h"

namespace runahead {
namespace {

constexpr char kOtlpTraces[] = "runahead_otlp_traces_total";
constexpr char kOtlpTracesHelp[] = "Traces that were recorded, by what came of sending them to otlp_endpoint";

}  // namespace

OtlpMetrics::OtlpMetrics(MetricRegistry& registry)
    : sent(registry.AddCounter(kOtlpTraces, kOtlpTracesHelp, {{"result", "sent"}})),
      dropped(registry.AddCounter(kOtlpTraces, kOtlpTracesHelp, {{"result", "dropped"}})),
      failed(registry.AddCounter(kOtlpTraces, kOtlpTracesHelp, {{"result", "failed"}})) {}

}  // namespace runahead
