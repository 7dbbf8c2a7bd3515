#include "worker/link/tcp/tcp_strangers.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

void TcpStrangers::Add(uint64_t id, std::string host, Clock::time_point now) {
  ++of_host_[host];
  strangers_.emplace(id, Stranger{id, std::move(host), now});
}

void TcpStrangers::Greeted(uint64_t id) {
  strangers_.at(id).greeted = true;
}

void TcpStrangers::Remove(uint64_t id) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  const auto of_host = of_host_.find(found->second.host);
  if (--of_host->second == 0) of_host_.erase(of_host);
  strangers_.erase(found);
}

std::string TcpStrangers::HostOf(uint64_t id) const {
  const auto found = strangers_.find(id);
  return found == strangers_.end() ? "" : found->second.host;
}

const TcpStrangers::Stranger& TcpStrangers::First() const {
  RUNAHEAD_CHECK(!strangers_.empty());
  const auto rank = [this](const Stranger& stranger) {
    return std::pair(of_host_.at(stranger.host), !stranger.greeted);
  };
  const Stranger* first = &strangers_.begin()->second;
  for (const auto& [id, stranger] : strangers_) {
    if (rank(stranger) > rank(*first)) first = &stranger;
  }
  return *first;
}

}  // namespace runahead
