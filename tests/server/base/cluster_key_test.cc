#include "server/base/cluster_key.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string KeyFile(const std::string& text, mode_t mode = 0600) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/cluster.key");
  std::remove(path.c_str());
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

TEST(ClusterKey, ProofsAreHmacSha256) {  // RFC 4231, cases 1 and 2
  EXPECT_EQ(absl::BytesToHexString(ClusterKey(std::string(20, '\x0b')).Proof("Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(absl::BytesToHexString(ClusterKey("Jefe").Proof("what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(absl::BytesToHexString(ClusterKey().Proof("")),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(ClusterKey, SameProofComparesAllOfIt) {
  EXPECT_TRUE(SameProof("abc", "abc"));
  EXPECT_TRUE(SameProof("", ""));
  EXPECT_FALSE(SameProof("abd", "abc"));
  EXPECT_FALSE(SameProof("ab", "abc"));
  EXPECT_FALSE(SameProof("", "abc"));
}

TEST(ClusterKey, IsTheFilesTextWithoutTheWhiteSpaceAroundIt) {
  const auto key = ClusterKey::Read(KeyFile("  0123456789 abcdef\r\n"));
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_TRUE(key->given());
  EXPECT_EQ(key->Proof("x"), ClusterKey("0123456789 abcdef").Proof("x"));
  EXPECT_TRUE(ClusterKey::Read(KeyFile("0123456789abcdef", 0640)).ok()) << "a group may be the service's own";
}

TEST(ClusterKey, NoPathIsNoKey) {
  const auto key = ClusterKey::Read("");
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_FALSE(key->given());
}

TEST(ClusterKey, RefusesWhatIsNoSecretAndSaysWhatToDo) {
  const auto message = [](const std::string& path) { return std::string(ClusterKey::Read(path).status().message()); };
  EXPECT_THAT(message("/nowhere/key"), AllOf(StartsWith("cluster_key: "), HasSubstr("/nowhere/key")));
  EXPECT_EQ(ClusterKey::Read("/nowhere/key").status().code(), absl::StatusCode::kNotFound);
  for (const mode_t mode : {0604, 0602}) {
    EXPECT_THAT(message(KeyFile("0123456789abcdef", mode)),
                AllOf(StartsWith("cluster_key: "), HasSubstr("cluster.key"), HasSubstr("chmod o-rw")));
  }
  EXPECT_THAT(message(KeyFile("fifteen bytes .\n")),
              AllOf(HasSubstr("cluster.key holds 15 bytes"), HasSubstr("openssl rand"), Not(HasSubstr("fifteen"))));
  EXPECT_THAT(message(KeyFile(std::string(5000, 'x'))), AllOf(HasSubstr("larger than 4096"), Not(HasSubstr("xxx"))));
}

}  // namespace
}  // namespace runahead
