#include "server/router/edge_states.h"

namespace runahead {

WorkerLife LifeOf(const v1::Capabilities& worker) {
  return {worker.incarnation(), worker.epoch()};
}

uint32_t EdgeStates::Generation(const WorkerLife& a, const WorkerLife& b) {
  return edges_[EndsOf(a, b)].generation;
}

bool EdgeStates::Usable(const WorkerLife& a, const WorkerLife& b) const {
  const auto found = edges_.find(EndsOf(a, b));
  return found == edges_.end() || found->second.usable();
}

EdgeState EdgeStates::StateOf(const WorkerLife& a, const WorkerLife& b) const {
  const auto found = edges_.find(EndsOf(a, b));
  if (found == edges_.end()) return EdgeState::kOpening;
  const Edge& edge = found->second;
  if (edge.broken) return EdgeState::kBroken;
  return edge.up[0] && edge.up[1] ? EdgeState::kUp : EdgeState::kOpening;
}

bool EdgeStates::Reaches(const WorkerLife& prefill, const WorkerLife& decode) const {
  return !unreachable_.contains({prefill, decode});
}

bool EdgeStates::Report(const WorkerLife& by, const v1::PathState& state, absl::Time now) {
  const WorkerLife peer{state.peer().incarnation(), state.peer().epoch()};
  if (over_.contains(peer)) return false;
  const bool broken = state.condition() == v1::PATH_CONDITION_BROKEN;
  if (state.generation() == 0) {
    return broken ? unreachable_.insert({by, peer}).second : unreachable_.erase({by, peer}) > 0;
  }
  const Ends ends = EndsOf(by, peer);
  const auto found = edges_.find(ends);
  if (found == edges_.end() || found->second.generation != state.generation()) return false;
  Edge& edge = found->second;
  const bool before = edge.usable();
  edge.up[by == ends.first ? 0 : 1] = state.condition() == v1::PATH_CONDITION_UP;
  if (edge.up[0] && edge.up[1]) edge.backoff.Worked();
  if (broken && !edge.broken) {
    edge.broken = true;
    edge.backoff.Failed(now);
  }
  return edge.usable() != before;
}

bool EdgeStates::Renew(absl::Time now) {
  bool renewed = false;
  for (auto& [ends, edge] : edges_) {
    if (!edge.broken || now < edge.backoff.due()) continue;
    ++edge.generation;
    edge.broken = edge.up[0] = edge.up[1] = false;
    renewed = true;
  }
  return renewed;
}

void EdgeStates::Forget(const WorkerLife& life) {
  over_.Add(life);
  std::erase_if(edges_, [&life](const auto& edge) { return edge.first.first == life || edge.first.second == life; });
  std::erase_if(unreachable_, [&life](const Ends& ends) { return ends.first == life || ends.second == life; });
}

}  // namespace runahead
