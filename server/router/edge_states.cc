#include "server/router/edge_states.h"

#include <algorithm>

namespace runahead {

WorkerLife LifeOf(const v1::Capabilities& worker) {
  return {worker.incarnation(), worker.epoch()};
}

uint32_t EdgeStates::Generation(const WorkerLife& a, const WorkerLife& b) {
  return edges_[EndsOf(a, b)].generation;
}

bool EdgeStates::Usable(const WorkerLife& a, const WorkerLife& b) const {
  if (IsDoubted(EdgeBetween(a, b))) return false;
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
  return !unreachable_.contains({prefill, decode}) && !IsDoubted({WorkerPath::Kind::kHandoff, prefill, decode});
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

WorkerPath EdgeStates::EdgeBetween(const WorkerLife& a, const WorkerLife& b) {
  const auto [first, second] = EndsOf(a, b);
  return {WorkerPath::Kind::kEdge, first, second};
}

bool EdgeStates::IsDoubted(const WorkerPath& path) const {
  return std::any_of(doubts_.begin(), doubts_.end(), [&path](const Doubted& doubt) { return doubt.path == path; });
}

void EdgeStates::Doubt(const WorkerPath& path, absl::Time now) {
  if (over_.contains(path.from) || over_.contains(path.to)) return;
  const bool edge = path.kind == WorkerPath::Kind::kEdge;
  const auto known = edges_.find(EndsOf(path.from, path.to));
  const bool works =
      edge ? known == edges_.end() || known->second.usable() : !unreachable_.contains({path.from, path.to});
  if (!works) return;  // its ends have said so already
  Doubted doubt{edge ? EdgeBetween(path.from, path.to) : path, ++last_question_, {path.from}, now + kDoubtTimeout};
  if (edge) doubt.unanswered.insert(path.to);  // of a way of hand-off its prefill worker alone tells
  for (const WorkerLife& end : doubt.unanswered) questions_[end] = doubt.question;
  std::erase_if(doubts_, [&doubt](const Doubted& before) { return before.path == doubt.path; });
  doubts_.push_back(std::move(doubt));
}

uint64_t EdgeStates::Question(const WorkerLife& life) const {
  const auto found = questions_.find(life);
  return found == questions_.end() ? 0 : found->second;
}

bool EdgeStates::Answer(const WorkerLife& by, uint64_t question) {
  for (Doubted& doubt : doubts_) {
    if (doubt.question <= question) doubt.unanswered.erase(by);
  }
  return std::erase_if(doubts_, [](const Doubted& doubt) { return doubt.unanswered.empty(); }) > 0;
}

bool EdgeStates::EndDoubts(absl::Time now) {
  return std::erase_if(doubts_, [now](const Doubted& doubt) { return now >= doubt.until; }) > 0;
}

void EdgeStates::Forget(const WorkerLife& life) {
  over_.Add(life);
  std::erase_if(edges_, [&life](const auto& edge) { return edge.first.first == life || edge.first.second == life; });
  std::erase_if(unreachable_, [&life](const Ends& ends) { return ends.first == life || ends.second == life; });
  std::erase_if(doubts_, [&life](const Doubted& doubt) { return doubt.path.from == life || doubt.path.to == life; });
  questions_.erase(life);
}

}  // namespace runahead
