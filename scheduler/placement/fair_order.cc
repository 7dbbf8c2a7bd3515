#include "scheduler/placement/fair_order.h"

#include <algorithm>
#include <utility>

namespace runahead {
namespace {

// Names that are not listed and have turns of their own at once.
constexpr int64_t kUnlistedTenants = 256;

}  // namespace

Turn FairOrder::Come(const Claim& claim) {
  const int priority = static_cast<int>(claim.priority);
  Request request{TenantOf(claim), static_cast<double>(claim.tokens) / claim.weight};
  Tenant& tenant = tenants_[request.tenant];
  tenant.listed = claim.listed;
  ++tenant.waiting;
  double& end = tenant.ends[priority];
  const double begin = std::max(end, now_[priority]);
  end = begin + request.cost;
  waiting_.emplace(next_, std::move(request));
  return {claim.priority, begin, next_++};
}

void FairOrder::Served(const Turn& turn, const Turn& had) {
  double& now = now_[static_cast<int>(had.priority)];
  now = std::max(now, had.begin);
  Take(turn);
  if (waiting_.empty()) Clear();
}

void FairOrder::Left(const Turn& turn) {
  const int priority = static_cast<int>(turn.priority);
  const Request request = Take(turn);
  // Where its turn has passed meanwhile, those of its tenant that came later did not begin behind it.
  if (turn.begin + request.cost > now_[priority]) tenants_[request.tenant].ends[priority] -= request.cost;
  if (waiting_.empty()) Clear();
}

int64_t FairOrder::tenants() const {
  return std::count_if(tenants_.begin(), tenants_.end(), [](const auto& tenant) { return tenant.second.waiting > 0; });
}

std::string FairOrder::TenantOf(const Claim& claim) {
  if (claim.tenant.empty() || claim.listed || tenants_.contains(claim.tenant)) return claim.tenant;
  if (Unlisted() >= kUnlistedTenants) Forget();
  return Unlisted() < kUnlistedTenants ? claim.tenant : "";
}

int64_t FairOrder::Unlisted() const {
  return std::count_if(tenants_.begin(), tenants_.end(),
                       [](const auto& tenant) { return !tenant.first.empty() && !tenant.second.listed; });
}

// It does not wait any more.
FairOrder::Request FairOrder::Take(const Turn& turn) {
  Request request = std::move(waiting_.extract(turn.number).mapped());
  --tenants_[request.tenant].waiting;
  return request;
}

// Those whose next request begins now, whatever they had.
void FairOrder::Forget() {
  std::erase_if(tenants_, [this](const auto& entry) {
    const Tenant& tenant = entry.second;
    return tenant.waiting == 0 && std::equal(tenant.ends.begin(), tenant.ends.end(), now_.begin(),
                                             [](double end, double now) { return end <= now; });
  });
}

// Nobody waits: from now on all are alike.
void FairOrder::Clear() {
  for (const auto& [name, tenant] : tenants_) {
    for (int i = 0; i < kRequestPriorities; ++i) now_[i] = std::max(now_[i], tenant.ends[i]);
  }
  tenants_.clear();
}

}  // namespace runahead
