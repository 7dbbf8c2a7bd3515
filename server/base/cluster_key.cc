#include "server/base/cluster_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr size_t kFewestBytes = 16;
constexpr int64_t kMostBytes = 4096;  // far above any real key

absl::StatusOr<ClusterKey> ReadKey(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  if ((file.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("everybody on this host may read or write ", path, ": chmod o-rw it, and make a new key"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMostBytes));
  const absl::string_view secret = absl::StripAsciiWhitespace(text);
  if (secret.size() < kFewestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds ", secret.size(), " bytes, and a key has at least ",
                                                   kFewestBytes, ": make one with  openssl rand -hex 32 >", path));
  }
  return ClusterKey(std::string(secret));
}

}  // namespace

absl::StatusOr<ClusterKey> ClusterKey::Read(const std::string& path) {
  if (path.empty()) return ClusterKey();
  absl::StatusOr<ClusterKey> key = ReadKey(path);
  if (key.ok()) return key;
  return absl::Status(key.status().code(), absl::StrCat("cluster_key: ", key.status().message()));
}

std::string ClusterKey::Proof(absl::string_view text) const {
  std::string proof(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  RUNAHEAD_CHECK(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                      reinterpret_cast<unsigned char*>(proof.data()), &size) != nullptr);
  proof.resize(size);
  return proof;
}

bool SameProof(absl::string_view claimed, absl::string_view right) {
  return claimed.size() == right.size() && CRYPTO_memcmp(claimed.data(), right.data(), right.size()) == 0;
}

}  // namespace runahead
