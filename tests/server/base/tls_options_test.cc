#include "server/base/tls_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(TlsOptions, ClientsAreJudgedByAuthoritiesAndUnderTls) {
  const auto complaint = [](const TlsFiles& files, const std::string& client_auth) {
    return std::string(CheckClientAuth(files, client_auth).message());
  };
  EXPECT_EQ(complaint({}, "none"), "");
  EXPECT_EQ(complaint({"a", "b", "c"}, "require"), "");
  EXPECT_EQ(complaint({"a", "b", "c"}, "request"), "");
  EXPECT_THAT(complaint({"a", "b", "c"}, "none"), StartsWith("tls_ca: is for clients' certificates"));
  EXPECT_THAT(complaint({"a", "b", ""}, "require"), StartsWith("tls_client_auth: require judges"));
  EXPECT_THAT(complaint({}, "request"), StartsWith("tls_client_auth: request judges"));
}

TEST(TlsOptions, AMisspeltOneIsToldWhatWasMeant) {
  TlsFiles files;
  std::string name;
  ConfigSchema schema;
  DeclareClusterTls(schema, files, name);
  EXPECT_THAT(std::string(ReadConfigText("cluster_tls_cret: x", "w.yaml", schema).message()),
              HasSubstr("did you mean 'cluster_tls_cert'"));
  ASSERT_TRUE(ReadConfigText("cluster_tls_ca: y", "w.yaml", schema).ok());
  EXPECT_EQ(files.ca, "y");
}

}  // namespace
}  // namespace runahead
