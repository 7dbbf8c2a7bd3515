#include "server/rpc/trace_proto.h"

namespace runahead {

v1::TraceSpans SpansToProto(const SpanRecorder::Recorded& recorded) {
  v1::TraceSpans proto;
  for (const RecordedSpan& span : recorded.spans) {
    v1::TraceSpan& to = *proto.add_spans();
    to.set_name(span.name);
    to.set_layer(span.layer);
    to.set_start_ns(span.start_ns);
    to.set_duration_ns(span.duration_ns);
    to.set_amount(span.amount);
  }
  proto.set_dropped(recorded.dropped);
  return proto;
}

}  // namespace runahead
