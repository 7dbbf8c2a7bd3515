#include "server/base/tls_files.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_ca.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using testing::CertificateOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TestCa;
using testing::TestCertificate;
using testing::TlsFolder;

const TestCa& OurCa() {
  static const TestCa& ca = *new TestCa;
  return ca;
}

TlsSpec Member(const TlsFolder& folder) {
  return {"cluster_tls", folder.files(), "runahead-cluster"};
}

absl::Status Judged(const TlsSpec& spec) {
  const absl::StatusOr<TlsTexts> texts = ReadTlsTexts(spec);
  return texts.ok() ? CheckTls(spec, *texts, absl::Now()).status() : texts.status();
}

std::string MemberComplaint(const TestCertificate& certificate, const std::string& ca = OurCa().cert()) {
  const TlsFolder folder("judged", certificate, ca);
  const absl::Status status = Judged(Member(folder));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("PRIVATE")));
  return std::string(status.message());
}

TEST(TlsFiles, TakesACertificateThatIsGoodForBothEnds) {
  const TlsFolder folder("good", OurCa().Sign({.ends = absl::Hours(5)}), OurCa().cert());
  const TlsSpec spec = Member(folder);
  const absl::StatusOr<TlsTexts> texts = ReadTlsTexts(spec);
  ASSERT_TRUE(texts.ok()) << texts.status();
  const absl::StatusOr<TlsMaterial> material = CheckTls(spec, *texts, absl::Now());
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_GT(material->expires, absl::Now() + absl::Minutes(299));
  EXPECT_LT(material->expires, absl::Now() + absl::Minutes(301));
  EXPECT_EQ(material->ca, OurCa().cert());
}

TEST(TlsFiles, NamesTheOneThatIsMissing) {
  const auto complaint = [](const TlsFiles& files, const std::string& member) {
    return std::string(CheckTlsFiles({member.empty() ? "tls" : "cluster_tls", files, member}).message());
  };
  EXPECT_EQ(complaint({}, ""), "");
  EXPECT_EQ(complaint({"a", "b", ""}, ""), "");
  EXPECT_THAT(complaint({"a", "", ""}, ""), StartsWith("tls_key: is missing: give tls_cert, tls_key together"));
  EXPECT_THAT(complaint({"", "b", ""}, ""), StartsWith("tls_cert: is missing"));
  EXPECT_THAT(complaint({"", "", "c"}, ""), StartsWith("tls_cert: is missing"));
  EXPECT_THAT(complaint({"a", "b", ""}, "m"), StartsWith("cluster_tls_ca: is missing"));
}

TEST(TlsFiles, NamesFlagsAsFlags) {
  EXPECT_THAT(std::string(CheckTlsFiles({"--tls", {"a", "", ""}}).message()), StartsWith("--tls-key: is missing"));
}

TEST(TlsFiles, SaysWhichFileCannotBeRead) {
  const TlsFolder folder("unreadable", OurCa().Sign(), OurCa().cert());
  TlsSpec spec = Member(folder);
  spec.files.cert = "/nowhere/tls.crt";
  const absl::Status status = Judged(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith("cluster_tls_cert: cannot read /nowhere/tls.crt"));
}

TEST(TlsFiles, RefusesAKeyThatEverybodyMayRead) {
  const TlsFolder folder("open", OurCa().Sign(), OurCa().cert());
  ASSERT_EQ(chmod(folder.files().key.c_str(), 0644), 0);
  const absl::Status status = Judged(Member(folder));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("cluster_tls_key: "), HasSubstr("chmod o-rw")));
  ASSERT_EQ(chmod(folder.files().key.c_str(), 0640), 0);
  EXPECT_TRUE(Judged(Member(folder)).ok()) << "a group may be the service's own";
}

TEST(TlsFiles, RefusesAPairThatDoesNotFit) {
  EXPECT_THAT(MemberComplaint({OurCa().Sign().cert, OurCa().Sign().key}),
              AllOf(StartsWith("cluster_tls_key: "), HasSubstr("does not fit the certificate in")));
}

TEST(TlsFiles, RefusesHalfAFile) {
  const TestCertificate whole = OurCa().Sign();
  EXPECT_THAT(MemberComplaint({whole.cert.substr(0, whole.cert.size() / 2), whole.key}),
              AllOf(StartsWith("cluster_tls_cert: "), HasSubstr("holds no certificate")));
  EXPECT_THAT(MemberComplaint({whole.cert, whole.key.substr(0, whole.key.size() / 2)}),
              AllOf(StartsWith("cluster_tls_key: "), HasSubstr("holds no private key")));
  EXPECT_THAT(MemberComplaint(whole, "no certificate at all"), StartsWith("cluster_tls_ca: "));
}

TEST(TlsFiles, RefusesAFileWhoseSecondCertificateIsCutOff) {
  const TestCertificate whole = OurCa().Sign();
  const std::string half = TestCa("another").cert().substr(0, 300);
  EXPECT_THAT(MemberComplaint({whole.cert + half, whole.key}),
              AllOf(StartsWith("cluster_tls_cert: "), HasSubstr("damaged behind its first 1")));
  EXPECT_THAT(MemberComplaint(whole, OurCa().cert() + half),
              AllOf(StartsWith("cluster_tls_ca: "), HasSubstr("damaged behind its first 1")));
  const TlsFolder folder("two", {whole.cert + OurCa().cert() + "and words\n", whole.key},
                         OurCa().cert() + TestCa("another").cert());
  EXPECT_EQ(Judged(Member(folder)), absl::OkStatus());
}

TEST(TlsFiles, RefusesAKeyThatOpensslWouldNotTake) {
  const TestCertificate weak = OurCa().Sign({.rsa_bits = 512});
  EXPECT_THAT(MemberComplaint(weak), AllOf(StartsWith("cluster_tls_cert: "), HasSubstr("is not taken by OpenSSL: ")));
  const TlsFolder folder("strong", OurCa().Sign({.rsa_bits = 2048}), OurCa().cert());
  EXPECT_EQ(Judged(Member(folder)), absl::OkStatus());
}

TEST(TlsFiles, RefusesWhatIsNotGoodNow) {
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.begins = -absl::Hours(2), .ends = -absl::Hours(1)})),
              AllOf(StartsWith("cluster_tls_cert: "), HasSubstr("ran out on")));
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.begins = absl::Hours(1), .ends = absl::Hours(2)})),
              HasSubstr("is good from"));
}

TEST(TlsFiles, RefusesWhatTheOthersOfTheClusterWouldRefuse) {
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.dns_names = {"router.example"}})),
              HasSubstr("is not for runahead-cluster"));
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.dns_names = {}, .common_name = "runahead-cluster"})),
              HasSubstr("is not for runahead-cluster"));
  EXPECT_THAT(MemberComplaint(TestCa("another").Sign()), HasSubstr("would be refused by the others"));
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.usage = "serverAuth"})), HasSubstr("as ssl_client"));
  EXPECT_THAT(MemberComplaint(OurCa().Sign({.usage = "clientAuth"})), HasSubstr("as ssl_server"));
}

TEST(TlsFiles, AMembersNameIsTakenAsItStands) {
  const TlsFolder folder("wildcard", OurCa().Sign({.dns_names = {"*.cluster.example"}}), OurCa().cert());
  const absl::Status status = Judged({"cluster_tls", folder.files(), "members.cluster.example"});
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not for members.cluster.example"));
}

TEST(TlsFiles, APortsCertificateMayBeOfAnyAuthorityAndName) {
  const TlsFolder folder("port", TestCa("public").Sign({.dns_names = {"llm.example"}, .usage = "serverAuth"}), "");
  EXPECT_TRUE(Judged({"tls", folder.files()}).ok());
}

}  // namespace
}  // namespace runahead
