#include "server/router/key_door.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/rpc/status.h"
#include "server/rpc/tenant_key.h"

namespace runahead {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr char kApiKey[] = "x-api-key";
constexpr absl::string_view kBearer = "bearer ";

// The values of a metadata key, as many as there are.
std::vector<absl::string_view> ValuesOf(const grpc::ServerContextBase& context, const char* key) {
  std::vector<absl::string_view> values;
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto it = begin; it != end; ++it) values.emplace_back(it->second.data(), it->second.size());
  return values;
}

// What the call brings as its key; nothing where it brings none, or more than one.
std::optional<absl::string_view> KeyOf(const grpc::ServerContextBase& context) {
  std::vector<absl::string_view> keys = ValuesOf(context, kApiKey);
  for (absl::string_view value : ValuesOf(context, kAuthorization)) {
    if (!absl::StartsWithIgnoreCase(value, kBearer)) return std::nullopt;
    keys.push_back(absl::StripAsciiWhitespace(value.substr(kBearer.size())));
  }
  return keys.size() == 1 ? std::optional(keys[0]) : std::nullopt;
}

const char* NameOf(KeyFault fault) {
  switch (fault) {
    case KeyFault::kMissing:
      return "none";
    case KeyFault::kUnknown:
      return "one that is not known";
    case KeyFault::kExpired:
      return "one that has expired";
  }
  RUNAHEAD_CHECK(false);
}

// The tenant that the metadata names; empty where it names none. INVALID_ARGUMENT for what is no name.
absl::StatusOr<std::string> TenantOf(const grpc::ServerContextBase& context) {
  const std::vector<absl::string_view> tenants = ValuesOf(context, kTenantKey);
  if (tenants.empty()) return "";
  if (tenants.size() > 1) return InvalidField(kTenantKey, "is there twice");
  if (IsTenantName(tenants[0])) return std::string(tenants[0]);
  return InvalidField(kTenantKey, absl::StrCat("must be 1 to ", kMaxTenantBytes, " printable ASCII characters"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<KeyAccount>> KeyDoor::Judge(const grpc::ServerContextBase& context,
                                                           KeyFault& fault) const {
  const std::optional<absl::string_view> key = KeyOf(context);
  if (!key) {
    fault = KeyFault::kMissing;
    return absl::UnauthenticatedError(
        "this router takes calls with an API key only: send one as metadata, `authorization: Bearer KEY`");
  }
  KeyRing::Found found = ring_.Find(*key);
  if (found.account == nullptr) {
    fault = KeyFault::kUnknown;
    return absl::UnauthenticatedError("the API key is none that this router takes");
  }
  if (clock_.Now() >= found.expires) {
    fault = KeyFault::kExpired;
    return absl::UnauthenticatedError(
        absl::StrCat("the API key \"", found.account->name(), "\" expired at ",
                     absl::FormatTime(absl::RFC3339_sec, found.expires, absl::UTCTimeZone())));
  }
  return std::move(found.account);
}

absl::StatusOr<std::shared_ptr<KeyAccount>> KeyDoor::AccountOf(const grpc::ServerContextBase& context) const {
  KeyFault fault;
  return Judge(context, fault);
}

absl::Status KeyDoor::Admit(const grpc::ServerContextBase& context) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<KeyAccount> account, Find(context));
  return account->LetIn();
}

absl::Status KeyDoor::Recognize(const grpc::ServerContextBase& context) {
  return Find(context).status();
}

absl::StatusOr<std::shared_ptr<KeyAccount>> KeyDoor::Find(const grpc::ServerContextBase& context) {
  KeyFault fault;
  absl::StatusOr<std::shared_ptr<KeyAccount>> account = Judge(context, fault);
  if (account.ok()) return account;
  metrics_.CountFault(fault);
  if (const std::optional<int64_t> times = stranger_.Happened(clock_.Now())) {
    LogWarning("keys", "calls without a good API key were refused: ", *times,
               " since this was said last; the latest, from ", context.peer(), ", had ", NameOf(fault));
  }
  return account;
}

CallDoor WithKeys(CallDoor door, KeyDoor* keys) {
  if (keys != nullptr) {
    door.admit = [keys](const grpc::ServerContextBase& context) { return keys->Admit(context); };
  }
  return door;
}

absl::StatusOr<RequestOwner> OwnerOf(const grpc::ServerContextBase& context, const KeyDoor* door,
                                     v1::GenerateRequest& request) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::string tenant, TenantOf(context));
  if (door == nullptr) return RequestOwner{std::move(tenant), {}};
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<KeyAccount> account, door->AccountOf(context));
  RUNAHEAD_RETURN_IF_ERROR(account->Check(tenant, request));
  RUNAHEAD_ASSIGN_OR_RETURN(KeyGrant grant, account->Enter());
  return RequestOwner{account->name(), std::move(grant)};
}

}  // namespace runahead
