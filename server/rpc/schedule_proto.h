// The schedule on the wire.
#pragma once

#include <optional>

#include "runahead/v1/inference.pb.h"
#include "scheduler/partition/schedule.h"

namespace runahead {

v1::Schedule ScheduleToProto(Schedule schedule);

// Nothing where the sender leaves the choice open, or names one that this build does not know.
std::optional<Schedule> ScheduleFromProto(v1::Schedule schedule);

}  // namespace runahead
