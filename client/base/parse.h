// Values of the command line that have a form of their own. Pure; errors are INVALID_ARGUMENT without the flag's name.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runahead/v1/inference.pb.h"

namespace runahead {

// "1,2,3": whole numbers of 32 bits between commas, blanks around them are allowed; "" is refused.
absl::StatusOr<std::vector<int32_t>> ParseIds(absl::string_view text);

// "user:What is a chain?": role, colon, text as it is (more colons included).
absl::StatusOr<v1::ChatMessage> ParseMessage(absl::string_view text);

// Messages travel as UTF-8: says at which byte `text` is none.
absl::Status CheckUtf8(absl::string_view text);

// INVALID_ARGUMENT with what the parts make together: WrongFlag("--width: ", width, " is out of range; ...").
template <typename... Parts>
absl::Status WrongFlag(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// INVALID_ARGUMENT with the flag before the message: "--stop: is not valid UTF-8 at byte 0". OK stays OK.
absl::Status InFlag(absl::string_view flag, const absl::Status& status);

}  // namespace runahead
