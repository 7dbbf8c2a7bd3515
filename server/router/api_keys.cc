#include "server/router/api_keys.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/api_key.h"
#include "server/base/config.h"
#include "server/rpc/tenant_key.h"

namespace runahead {
namespace {

// An entry as the file has it.
struct Item {
  std::string where;
  std::string name, hash, old_hash, expires;
  std::string priority = "normal";
  KeyLimits limits;
};

void DeclareItem(ConfigSchema& schema, Item& item) {
  constexpr IntLimits kLimit = {.min = 1, .max = int64_t{1} << 40};
  KeyLimits& limits = item.limits;
  schema.Place(&item.where);
  schema.String("name", &item.name, {.required = true}, "Whose it is");
  schema.String("hash", &item.hash, {.required = true}, "Of the key");
  schema.String("old_hash", &item.old_hash, {.allow_empty = false}, "Of a key that is still taken");
  schema.String("expires", &item.expires, {.allow_empty = false}, "When it is taken no more");
  schema.String("priority", &item.priority, {.one_of = {"normal", "low"}}, "The highest of its requests");
  schema.Double("weight", &limits.weight, {.min = 0.01, .max = 100}, "Its share beside others that wait");
  schema.Int("requests_per_minute", &limits.requests_per_minute, kLimit, "Calls");
  schema.Int("tokens_per_minute", &limits.tokens_per_minute, kLimit, "Of prompts and answers");
  schema.Int("concurrent_requests", &limits.concurrent_requests, kLimit, "Requests that run or wait");
  schema.Int("max_tokens", &limits.max_tokens, kLimit, "Of an answer");
}

// A day, which is its first moment in UTC, or a moment.
absl::StatusOr<absl::Time> TimeOf(const std::string& text) {
  absl::Time time;
  std::string error;
  const bool read = absl::ParseTime("%Y-%m-%d", text, absl::UTCTimeZone(), &time, &error) ||
                    absl::ParseTime(absl::RFC3339_full, text, &time, &error);
  // Abseil also reads these by their names.
  if (read && time != absl::InfiniteFuture() && time != absl::InfinitePast()) return time;
  return absl::InvalidArgumentError("is no time; allowed: a day as 2027-01-31, or a moment as 2027-01-31T18:00:00Z");
}

// Errors come without the place.
absl::StatusOr<ApiKeyEntry> EntryOf(const Item& item) {
  const auto in = [](const char* key, const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": ", status.message()));
  };
  ApiKeyEntry entry;
  if (!IsApiKeyName(item.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: is no name; allowed: 1 to ", kMaxTenantBytes, " letters, digits, '.', '-' and '_'"));
  }
  entry.name = item.name;
  absl::StatusOr<std::string> hash = ParseApiKeyHash(item.hash);
  if (!hash.ok()) return in("hash", hash.status());
  entry.hash = *std::move(hash);
  if (!item.old_hash.empty()) {
    hash = ParseApiKeyHash(item.old_hash);
    if (!hash.ok()) return in("old_hash", hash.status());
    entry.old_hash = *std::move(hash);
  }
  if (!item.expires.empty()) {
    const absl::StatusOr<absl::Time> expires = TimeOf(item.expires);
    if (!expires.ok()) return in("expires", expires.status());
    entry.expires = *expires;
  }
  entry.limits = item.limits;
  if (item.priority == "low") entry.limits.priority = RequestPriority::kLow;
  return entry;
}

// Finds entries that have a name or a hash in common, for a call by it could be of either.
class Uniqueness {
 public:
  absl::Status Check(const ApiKeyEntry& entry, const std::string& where) {
    RUNAHEAD_RETURN_IF_ERROR(Once(names_, entry.name, where, "name"));
    RUNAHEAD_RETURN_IF_ERROR(Once(hashes_, entry.hash, where, "hash"));
    return entry.old_hash.empty() ? absl::OkStatus() : Once(hashes_, entry.old_hash, where, "old_hash");
  }

 private:
  using Seen = std::map<std::string, std::string>;  // where it stands
  static absl::Status Once(Seen& seen, const std::string& value, const std::string& where, const char* key) {
    const auto [first, fresh] = seen.emplace(value, where);
    if (fresh) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": the entry at ", first->second, " has the same; allowed: once"));
  }

  Seen names_, hashes_;
};

}  // namespace

absl::StatusOr<std::vector<ApiKeyEntry>> ParseApiKeys(const std::string& text, const std::string& path) {
  std::vector<Item> items;
  ConfigSchema schema;
  schema.Maps<Item>("keys", &items, DeclareItem, {.min_items = 1, .max_items = kMaxApiKeys, .required = true}, "Keys");
  RUNAHEAD_RETURN_IF_ERROR(ReadConfigText(text, path, schema));
  RUNAHEAD_RETURN_IF_ERROR(schema.Finish(path));
  std::vector<ApiKeyEntry> entries;
  Uniqueness uniqueness;
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<ApiKeyEntry> entry = EntryOf(items[i]);
    absl::Status status = entry.status();
    if (status.ok()) status = uniqueness.Check(*entry, items[i].where);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(items[i].where, ": keys[", i, "].", status.message()));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

}  // namespace runahead
