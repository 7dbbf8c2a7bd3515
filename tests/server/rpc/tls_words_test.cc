#include "server/rpc/tls_words.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::EndsWith;

std::string Words(const std::string& message, bool speaks_tls) {
  return std::string(WithTlsWords(absl::UnavailableError(message), speaks_tls, {"ON", "CA", "CERT", "NAME"}).message());
}

TEST(TlsWords, SayWhatToDoAboutAHandshakeThatFailed) {
  EXPECT_THAT(Words("Ssl handshake failed: error:0A000086:SSL routines::certificate verify failed", true),
              EndsWith("or is not of an authority that is trusted here (CA)"));
  EXPECT_THAT(Words("Hostname Verification Check failed.", true), EndsWith("is for another name (NAME)"));
  EXPECT_THAT(Words("Ssl handshake failed: SSL routines::wrong version number", true),
              EndsWith("or leave ON out here"));
  EXPECT_THAT(Words("last error: Socket closed", true), EndsWith("of this end (CERT)"));
  EXPECT_THAT(Words("last error: Socket closed", false), EndsWith("it may speak TLS only: give ON"));
}

TEST(TlsWords, LeaveOtherFailuresAlone) {
  EXPECT_EQ(Words("Connection refused", true), "Connection refused");
  EXPECT_EQ(Words("Connection refused", false), "Connection refused");
  EXPECT_EQ(Words("Socket closed", false), "Socket closed") << "of a connection that was ready";
  const absl::Status cancelled = absl::CancelledError("Socket closed");
  EXPECT_EQ(WithTlsWords(cancelled, true, {}), cancelled);
}

}  // namespace
}  // namespace runahead
