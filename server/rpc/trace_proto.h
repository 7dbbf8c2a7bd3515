// What was recorded of a request, as it travels.
#pragma once

#include "runahead/v1/worker.pb.h"
#include "server/base/span_recorder.h"

namespace runahead {

v1::TraceSpans SpansToProto(const SpanRecorder::Recorded& recorded);

}  // namespace runahead
