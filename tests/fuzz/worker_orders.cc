// Commands on a worker's control stream, one behind the other: who may give them, and what a job is asked for.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>

#include "runahead/v1/worker.pb.h"
#include "server/base/replay.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"
#include "worker/model/check_sampling.h"
#include "worker/prefill/service/job_from_proto.h"
#include "worker/service/control_seat.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

constexpr int64_t kContext = 4096, kVocabulary = 320;

void CheckStart(const v1::StartJob& start) {
  PrefillJob job = JobFromProto(start, absl::UnixEpoch());
  if (const absl::Status sampling = CheckSampling(job.sampling, kVocabulary); !sampling.ok()) {
    fuzz::CheckRefusal(sampling, "sampling.");
  }
  if (const absl::Status rules = CheckDrawRules(job.rules, kVocabulary); !rules.ok()) {
    fuzz::CheckRefusal(rules, "rules.");
  }
  const absl::Status fits = CheckJob(job, kContext, kVocabulary);
  if (!fits.ok()) return fuzz::CheckRefusal(fits, "");
  // What is computed with lies within the prompt and the vocabulary.
  RUNAHEAD_CHECK(job.part >= 0 && job.part < job.parts() && job.tokens() >= 1 && job.bounds.back() <= kContext);
  RUNAHEAD_CHECK(job.own_x_tokens() >= 0 && job.own_x_tokens() <= job.tokens());
  RUNAHEAD_CHECK(job.own_kv_from() >= job.begin() && job.own_kv_from() <= job.end());
  const int64_t ids = job.tail() ? job.bounds.back() : job.tokens();
  RUNAHEAD_CHECK(static_cast<int64_t>(job.ids.size()) == ids);
  for (const int32_t id : job.ids) RUNAHEAD_CHECK(id >= 0 && id < kVocabulary);
}

}  // namespace

void Fuzz(std::string_view input) {
  fuzz::QuietProtobuf();
  FuzzedDataProvider from(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  ControlSeat seat(/*incarnation=*/7, /*epoch=*/0);
  Inbox orders;
  absl::Time now = absl::UnixEpoch();
  uint64_t taken = 0;
  bool resumable = false;  // a router has held this epoch
  while (from.remaining_bytes() > 0) {
    v1::ControlCommand command;
    if (!command.ParseFromString(from.ConsumeRandomLengthString())) continue;
    now += absl::Milliseconds(from.ConsumeIntegralInRange<int>(0, 6000));
    if (command.has_hello()) {
      const v1::Hello& hello = command.hello();
      const SeatAnswer answer =
          seat.Ask({hello.router_incarnation(), hello.worker_incarnation(), hello.worker_epoch(), hello.resume()}, now);
      const bool given = answer == SeatAnswer::kTaken || answer == SeatAnswer::kResumed;
      RUNAHEAD_CHECK(!given || (seat.held() && hello.worker_incarnation() == 7));
      RUNAHEAD_CHECK(answer != SeatAnswer::kResumed || resumable);
      resumable = resumable || given;
    } else if (command.has_goodbye() && seat.held()) {
      seat.Broke(now);
    } else if (command.has_start()) {
      CheckStart(command.start());
    }
    if (orders.Take(command.order()) == InboxAnswer::kNext) RUNAHEAD_CHECK(command.order() == ++taken);
    RUNAHEAD_CHECK(orders.received() == taken);
  }
}

}  // namespace runahead
