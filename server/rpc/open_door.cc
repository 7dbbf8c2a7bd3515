#include "server/rpc/open_door.h"

#include <string>
#include <utility>

namespace runahead {
namespace {

ArrivalLimits LimitsOfShortMessages(int64_t min_rate) {
  ArrivalLimits limits;
  limits.bytes = kOpenDoorBytes;
  limits.message_bytes = kShortMessageBytes;
  limits.min_rate = min_rate;
  limits.patience = kOpenDoorPatience;
  limits.short_patience = absl::Milliseconds(100);
  limits.other_bytes = kShortMessageBytes;
  return limits;
}

DepartureLimits LimitsOfTheirAnswers(int64_t min_rate) {
  DepartureLimits limits;
  limits.bytes = kOpenDoorBytes;
  limits.min_rate = min_rate;
  limits.patience = kOpenDoorPatience;
  return limits;
}

}  // namespace

OpenDoor::OpenDoor(ArrivalWatcher messages, DepartureWatcher answers, int64_t min_rate, Clock& clock)
    : arrivals_(
          LimitsOfShortMessages(min_rate), std::move(messages), clock,
          [this](const std::string& peer) { return connections_.Of(peer); },
          [this](const std::string& peer) { connections_.HangUp(peer); }),
      departures_(LimitsOfTheirAnswers(min_rate), std::move(answers), clock) {}

}  // namespace runahead
