// An object of a request, read member by member: what is null is as if it were absent, refusals name the member, and
// what nobody reads is known in the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/gateway/openai/json_slice.h"

namespace runahead {

// The text outlives it. Not for several threads.
class JsonObject {
 public:
  // `place` is how refusals name it: empty for the whole body, whose members are named by themselves. INVALID_ARGUMENT
  // where it is no object, has a member twice, or more than 1024.
  static absl::StatusOr<JsonObject> Read(JsonSlice value, std::string place);
  // The whole body of a request.
  static absl::StatusOr<JsonObject> ReadBody(absl::string_view body);

  // How refusals name a member: "stop", "messages[0].role".
  std::string PlaceOf(absl::string_view key) const;

  // All of these count as reading it. Nothing where it is absent or null. INVALID_ARGUMENT where it is something else;
  // `allowed` says then what it may be: "a number from 0 to 100".
  std::optional<JsonSlice> Find(absl::string_view key);
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key);
  absl::StatusOr<std::optional<std::string>> String(absl::string_view key);
  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view key, absl::string_view allowed, int64_t least,
                                                 int64_t most);
  absl::StatusOr<std::optional<float>> Float(absl::string_view key, absl::string_view allowed);
  // The JSON of it, as it is written, where it is of `kind`.
  absl::StatusOr<std::optional<std::string>> Json(absl::string_view key, JsonSlice::Kind kind,
                                                  absl::string_view allowed);
  // `set` gets each.
  absl::Status Integers(absl::string_view key, int64_t least, int64_t most, absl::FunctionRef<void(int64_t)> set);

  // INVALID_ARGUMENT: "PLACE: it is WHAT; ALLOWED is allowed".
  absl::Status Wrong(absl::string_view key, JsonSlice value, absl::string_view allowed) const;

  // The keys that nobody has read, in order, fit for a message. Those of null count too.
  std::vector<std::string> Unread() const;

 private:
  struct Member {
    std::string key;
    JsonSlice value;
    bool read = false;
  };

  explicit JsonObject(std::string place) : place_(std::move(place)) {}

  std::string place_;
  std::vector<Member> members_;
};

// "PLACE: it is WHAT; ALLOWED is allowed", as INVALID_ARGUMENT with the field named.
absl::Status WrongValue(absl::string_view place, JsonSlice value, absl::string_view allowed);

}  // namespace runahead
