#include "worker/kv/lease_table.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"

namespace runahead {

std::string LeaseName(const LeaseId& id) {
  return absl::StrFormat("lease %016x/%d/%016x", id.incarnation, id.epoch, id.number);
}

LeaseTable::LeaseTable(uint64_t incarnation, absl::Duration life, Clock& clock)
    : incarnation_(incarnation), life_(life), clock_(clock) {}

LeaseId LeaseTable::Add(std::unique_ptr<KvLease> lease) {
  Renew(*lease);
  LeaseId id{incarnation_, RandomBits64(), epoch_};
  while (leases_.contains(id.number)) id.number = RandomBits64();
  growing_ += lease->grows ? 1 : 0;
  leases_.emplace(id.number, std::move(lease));
  ++living_;
  return id;
}

absl::StatusOr<KvLease*> LeaseTable::Find(const LeaseId& id) {
  if (id.incarnation != incarnation_ || id.epoch != epoch_) {
    return absl::NotFoundError(
        absl::StrCat(LeaseName(id), " was given by another worker, or by this one before it lost its router"));
  }
  const auto found = leases_.find(id.number);
  if (found == leases_.end() || found->second->dead || IsExpired(*found->second)) {
    return absl::NotFoundError(absl::StrCat(LeaseName(id), " is unknown, released or expired"));
  }
  return found->second.get();
}

void LeaseTable::Renew(KvLease& lease) const {
  lease.expires = clock_.Now() + life_;
}

void LeaseTable::Promise(KvLease& lease, int64_t blocks) {
  promised_ -= lease.promised;
  lease.promised = lease.dead ? 0 : blocks;
  promised_ += lease.promised;
}

bool LeaseTable::IsExpired(const KvLease& lease) const {
  const bool held = lease.open || lease.awaited || lease.writes > 0;
  return !held && lease.expires < clock_.Now();
}

std::optional<LeaseTable::Ending> LeaseTable::Release(const LeaseId& id) {
  const auto found = leases_.find(id.number);
  const bool known = id.incarnation == incarnation_ && id.epoch == epoch_ && found != leases_.end();
  if (!known || found->second->dead) return std::nullopt;
  return Kill(id.number);
}

std::vector<LeaseTable::Ending> LeaseTable::ReapExpired() {
  std::vector<uint64_t> over;
  for (const auto& [number, lease] : leases_) {
    if (!lease->dead && IsExpired(*lease)) over.push_back(number);
  }
  std::vector<Ending> endings;
  for (const uint64_t number : over) endings.push_back(Kill(number));
  expired_ += static_cast<int64_t>(over.size());
  return endings;
}

std::vector<LeaseTable::Ending> LeaseTable::EndAll() {
  std::vector<uint64_t> living;
  for (const auto& [number, lease] : leases_) {
    if (!lease->dead) living.push_back(number);
  }
  std::vector<Ending> endings;
  for (const uint64_t number : living) endings.push_back(Kill(number));
  return endings;
}

std::vector<LeaseTable::Ending> LeaseTable::BeginEpoch(uint32_t epoch) {
  epoch_ = epoch;
  return EndAll();
}

std::vector<int32_t> LeaseTable::EndWrite(uint64_t number) {
  KvLease& lease = at(number);
  RUNAHEAD_CHECK(lease.writes > 0);
  --lease.writes;
  return ForgetIfUnpinned(number);
}

std::vector<int32_t> LeaseTable::Close(uint64_t number) {
  KvLease& lease = at(number);
  lease.open = false;
  return lease.dead ? ForgetIfUnpinned(number) : Kill(number).blocks;
}

LeaseTable::Ending LeaseTable::Kill(uint64_t number) {
  KvLease& lease = at(number);
  RUNAHEAD_CHECK(!lease.dead);
  lease.dead = true;
  Promise(lease, 0);
  --living_;
  growing_ -= lease.grows ? 1 : 0;
  Ending ending{lease.completed, {}};
  ending.blocks = ForgetIfUnpinned(number);
  return ending;
}

std::vector<int32_t> LeaseTable::ForgetIfUnpinned(uint64_t number) {
  const auto found = leases_.find(number);
  const KvLease& lease = *found->second;
  if (!lease.dead || lease.open || lease.writes > 0) return {};
  std::vector<int32_t> blocks = lease.blocks;
  if (lease.copied_from.has_value()) blocks.push_back(*lease.copied_from);
  leases_.erase(found);
  return blocks;
}

}  // namespace runahead
