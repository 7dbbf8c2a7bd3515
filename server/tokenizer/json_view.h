// Reading JSON of others: every refusal names the place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace runahead {

// A value in a JSON text, which lives as long as some view into it. Not for several threads at once.
class JsonView {
 public:
  // `name` stands for the text in errors. INVALID_ARGUMENT where it is no JSON, is nested deeper than 64, or has more
  // than 256 MiB or 16 million values.
  static absl::StatusOr<JsonView> Parse(absl::string_view text, std::string name);

  bool IsNull() const;
  bool IsString() const;
  bool IsObject() const;
  bool IsArray() const;

  // Members of an object. A member that is null is as one that is missing.
  bool Has(absl::string_view key) const;
  absl::StatusOr<JsonView> Get(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<int64_t> Int() const;
  absl::StatusOr<double> Number() const;  // finite

  // In order of keys, and of the text; what is not OK ends it.
  absl::Status ForMembers(
      absl::FunctionRef<absl::Status(absl::string_view key, const JsonView& value)> on_member) const;
  absl::Status ForElements(absl::FunctionRef<absl::Status(const JsonView& value)> on_element) const;

  // INVALID_ARGUMENT with the place and what is said of it.
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(place_, ": ", parts...));
  }

 private:
  JsonView(std::shared_ptr<const void> value, std::string place) : value_(std::move(value)), place_(std::move(place)) {}
  JsonView Child(const void* value, std::string place) const;

  std::shared_ptr<const void> value_;  // a nlohmann::json, which keeps the whole
  std::string place_;
};

}  // namespace runahead
