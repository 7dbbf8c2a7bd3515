#include "worker/prefill/service/job_from_proto.h"

#include <memory>

#include "server/rpc/schedule_proto.h"
#include "worker/service/proto_convert.h"

namespace runahead {
PrefillJob JobFromProto(const v1::StartJob& start, absl::Time now) {
  PrefillJob job;
  job.id = start.job();
  job.request_id = start.request_id();
  job.schedule = ScheduleFromProto(start.schedule()).value_or(Schedule::kKvr);
  job.bounds.assign(start.bounds().begin(), start.bounds().end());
  job.part = start.part();
  job.interleave = start.interleave();
  job.expected_s = absl::ToDoubleSeconds(absl::Microseconds(start.expected_us()));
  job.allowance_s = absl::ToDoubleSeconds(absl::Microseconds(start.allowance_us()));
  job.ids.assign(start.ids().begin(), start.ids().end());
  if (start.has_lease()) {
    job.lease = LeaseFromProto(start.lease());
    const v1::PeerAddress& decode = start.decode();
    job.decode = {decode.link_address(), decode.incarnation(), {}, decode.epoch()};
    job.decode_name = decode.name();
  }
  job.x_tokens = start.x_tokens();
  job.kv_from = start.kv_from();
  if (start.deadline_ms() != 0) job.deadline = now + absl::Milliseconds(start.deadline_ms());
  if (start.has_prompt_logprobs()) job.prompt_logprobs = start.prompt_logprobs();
  job.next_id = start.next_id();
  job.sampling = SamplingFromProto(start.sampling());
  job.rules = DrawRulesFromProto(start.rules());
  if (!start.traceparent().empty()) job.spans = std::make_shared<SpanRecorder>();
  return job;
}

}  // namespace runahead
