// The line as its workers know it: who their neighbours are, and how the paths between workers stand.
#include <algorithm>
#include <utility>

#include "server/base/log_later.h"
#include "server/router/worker_registry.h"

namespace runahead {

void WorkerRegistry::FormLine(std::optional<int> newcomer) {
  if (stopping_) return;
  std::map<int, v1::FormLine> lines;  // what each is to know, by worker index
  for (const auto& [index, member] : members_) {
    if (member.live == nullptr) continue;
    lines[index].set_question(edges_.Question(LifeOf(member.capabilities)));  // one that has nothing to know is told so
    for (const WorkerLife& life : lost_) {
      v1::WorkerLife& lost = *lines[index].add_lost();
      lost.set_incarnation(life.incarnation);
      lost.set_epoch(life.epoch);
    }
  }
  const auto fill = [this](int index, uint32_t generation, v1::PeerAddress& to) RUNAHEAD_REQUIRES(mu_) {
    const v1::Capabilities& peer = members_.at(index).capabilities;
    to.set_name(peer.name());
    to.set_link_address(peer.link_address());
    to.set_incarnation(peer.incarnation());
    to.set_device_link(peer.device_link());
    to.set_epoch(peer.epoch());
    to.set_generation(generation);
  };
  const std::vector<int> line_of_fleet = fleet_.line();
  for (size_t i = 1; i < line_of_fleet.size(); ++i) {
    const int before = line_of_fleet[i - 1], after = line_of_fleet[i];
    if (!lines.contains(before) || !lines.contains(after)) continue;
    const uint32_t generation =
        edges_.Generation(LifeOf(members_[before].capabilities), LifeOf(members_[after].capabilities));
    fill(before, generation, *lines[after].mutable_predecessor());
    fill(after, generation, *lines[before].mutable_successor());
  }
  std::vector<std::pair<int, v1::ControlCommand>> commands;
  for (auto& [index, line] : lines) {
    v1::FormLine& told = members_[index].told;
    if (index != newcomer && told.SerializeAsString() == line.SerializeAsString()) continue;
    told = line;
    commands.emplace_back(index, v1::ControlCommand());
    *commands.back().second.mutable_form_line() = std::move(line);
  }
  sequencer_.Send(std::move(commands));
  TellPaths();
  CountEdges();
}

void WorkerRegistry::Doubt(const std::vector<WorkerPath>& paths) {
  MutexLock lock(mu_);
  for (const WorkerPath& path : paths) edges_.Doubt(path, clock_.Now());
  FormLine(std::nullopt);
}

void WorkerRegistry::TakePaths(int index, const v1::PathStates& paths, LogLater& later) {
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.live == nullptr) return;
  const v1::Capabilities& reporter = member->second.capabilities;
  bool changed = false;
  for (const v1::PathState& state : paths.states()) {
    if (!edges_.Report(LifeOf(reporter), state, clock_.Now())) continue;
    changed = true;
    const WorkerLife peer{state.peer().incarnation(), state.peer().epoch()};
    const auto other = std::find_if(members_.begin(), members_.end(),
                                    [&peer](const auto& m) { return LifeOf(m.second.capabilities) == peer; });
    const std::string name = other == members_.end() ? "a worker that is gone" : other->second.capabilities.name();
    const char* const what = state.generation() > 0 ? "the edge to " : "hand-off to ";
    if (state.condition() == v1::PATH_CONDITION_BROKEN) {
      later.Warning("line", reporter.name(), ": ", what, name, " is broken: ", state.message());
    } else {
      later.Info("line", reporter.name(), ": ", what, name, " works again");
    }
  }
  changed |= edges_.Answer(LifeOf(reporter), paths.question());
  if (changed) TellPaths();
  CountEdges();
}

void WorkerRegistry::TellPaths() {
  const auto life_of = [this](int index) RUNAHEAD_REQUIRES(mu_) -> std::optional<WorkerLife> {
    const auto member = members_.find(index);
    if (member == members_.end() || member->second.live == nullptr) return std::nullopt;
    return LifeOf(member->second.capabilities);
  };
  BrokenPaths broken;
  const std::vector<int> line = fleet_.line();
  for (size_t i = 0; i < line.size(); ++i) {
    const std::optional<WorkerLife> life = life_of(line[i]);
    if (!life) continue;
    const std::optional<WorkerLife> next = i + 1 < line.size() ? life_of(line[i + 1]) : std::nullopt;
    if (next && !edges_.Usable(*life, *next)) broken.edges.insert(line[i]);
    for (const auto& [index, member] : members_) {
      if (member.live == nullptr || !fleet_.workers()[index].decodes()) continue;
      if (!edges_.Reaches(*life, LifeOf(member.capabilities))) broken.handoffs.insert({line[i], index});
    }
  }
  fleet_.SetBroken(std::move(broken));
}

void WorkerRegistry::CountEdges() {
  EdgeCounts counts = {};
  const std::vector<int> line = fleet_.line();
  for (size_t i = 1; i < line.size(); ++i) {
    const auto before = members_.find(line[i - 1]), after = members_.find(line[i]);
    if (before == members_.end() || after == members_.end()) continue;
    if (before->second.live == nullptr || after->second.live == nullptr) continue;
    const EdgeState state = edges_.StateOf(LifeOf(before->second.capabilities), LifeOf(after->second.capabilities));
    ++counts[static_cast<size_t>(state)];
  }
  fleet_.CountEdges(counts);
}

}  // namespace runahead
