#include "server/rpc/schedule_proto.h"

namespace runahead {

v1::Schedule ScheduleToProto(Schedule schedule) {
  switch (schedule) {
    case Schedule::kKvr:
      return v1::SCHEDULE_KVR;
    case Schedule::kKvrEven:
      return v1::SCHEDULE_KVR_EVEN;
    case Schedule::kSingle:
      return v1::SCHEDULE_SINGLE;
    case Schedule::kTsp:
      return v1::SCHEDULE_TSP;
    case Schedule::kTspCausal:
      return v1::SCHEDULE_TSP_CAUSAL;
  }
  return v1::SCHEDULE_UNSPECIFIED;
}

std::optional<Schedule> ScheduleFromProto(v1::Schedule schedule) {
  for (const Schedule known : kSchedules) {
    if (ScheduleToProto(known) == schedule) return known;
  }
  return std::nullopt;
}

}  // namespace runahead
