#include "server/base/api_key.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"

namespace runahead {
namespace {

constexpr char kKeyPrefix[] = "runahead_";  // by which those who search for leaked secrets know it
constexpr char kHashPrefix[] = "sha256:";
constexpr size_t kHashBytes = 32;

}  // namespace

std::string DrawApiKey() {
  std::string key = kKeyPrefix;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&key, "%016x", RandomBits64());
  return key;
}

std::string HashOfApiKey(absl::string_view key) {
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  RUNAHEAD_CHECK(EVP_Digest(key.data(), key.size(), reinterpret_cast<unsigned char*>(hash.data()), &size, EVP_sha256(),
                            nullptr) == 1);
  hash.resize(size);
  return hash;
}

std::string ApiKeyHashText(absl::string_view hash) {
  return absl::StrCat(kHashPrefix, absl::BytesToHexString(hash));
}

absl::StatusOr<std::string> ParseApiKeyHash(absl::string_view text) {
  if (absl::ConsumePrefix(&text, kHashPrefix) && text.size() == 2 * kHashBytes &&
      std::all_of(text.begin(), text.end(), absl::ascii_isxdigit)) {
    return absl::HexStringToBytes(text);
  }
  return absl::InvalidArgumentError(
      "is no hash of a key; allowed: sha256: and 64 hex digits, as runahead keys new says");
}

}  // namespace runahead
