#include "server/base/live_tls.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/test_ca.h"

namespace runahead {
namespace {

using testing::TestCa;
using testing::TestCertificate;
using testing::TlsFolder;

class LiveTlsTest : public ::testing::Test {
 protected:
  void Open(TlsFiles files) {
    auto opened = LiveTls::Open({"cluster_tls", std::move(files), "runahead-cluster"}, now_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    tls_ = *std::move(opened);
    const absl::Status follows = tls_->Follow([this](const TlsMaterial& material) {
      if (!takes_.ok()) return takes_;
      ++taken_;
      identity_ = material.identity;
      return absl::OkStatus();
    });
    ASSERT_EQ(follows, absl::OkStatus());
  }
  // A look that is due.
  void Look() {
    now_ += kTlsPeriod;
    tls_->Poll(now_, metrics_);
  }
  bool Uses(const TestCertificate& certificate) const {
    return identity_.find(certificate.cert) != std::string::npos &&
           identity_.find(certificate.key) != std::string::npos;
  }

  const TestCa ca_;
  const TestCertificate first_ = ca_.Sign(), second_ = ca_.Sign({.ends = absl::Hours(2)});
  const TlsFolder folder_{"live", first_, ca_.cert()};
  MetricRegistry registry_{"none"};
  const TlsMetrics metrics_{registry_, "cluster_tls"};
  absl::Time now_ = absl::Now();
  std::unique_ptr<LiveTls> tls_;
  int taken_ = 0;
  absl::Status takes_;  // an error: nothing is taken
  std::string identity_;
};

TEST_F(LiveTlsTest, TakesWhatReplacesItsFiles) {
  Open(folder_.files());
  Look();
  EXPECT_EQ(taken_, 1) << "nothing has changed";
  EXPECT_EQ(metrics_.expiry.Value(), static_cast<double>(absl::ToUnixSeconds(tls_->material().expires)));
  const double before = metrics_.expiry.Value();
  folder_.Replace(second_);
  Look();
  EXPECT_TRUE(Uses(second_));
  EXPECT_EQ(taken_, 2);
  EXPECT_GT(metrics_.expiry.Value(), before);
  EXPECT_EQ(metrics_.reloaded.Value(), 1);
  EXPECT_EQ(metrics_.failed.Value(), 0);
}

TEST_F(LiveTlsTest, LooksOnceAPeriod) {
  Open(folder_.files());
  Look();
  folder_.Replace(second_);
  tls_->Poll(now_ + kTlsPeriod / 2, metrics_);
  EXPECT_TRUE(Uses(first_));
  tls_->Poll(now_ + kTlsPeriod, metrics_);
  EXPECT_TRUE(Uses(second_));
}

TEST_F(LiveTlsTest, FollowsASecretOfKubernetes) {  // a folder whose files lead through a link that is replaced
  const std::string root = absl::StrCat(::testing::TempDir(), "/", getpid(), "-secret");
  std::filesystem::remove_all(root);
  const auto put = [&](const std::string& name, const TestCertificate& certificate) {
    std::filesystem::create_directories(root + "/" + name);
    std::ofstream(root + "/" + name + "/tls.crt") << certificate.cert;
    std::ofstream(root + "/" + name + "/tls.key") << certificate.key;
    std::ofstream(root + "/" + name + "/ca.crt") << ca_.cert();
    chmod((root + "/" + name + "/tls.key").c_str(), 0440);
    std::filesystem::create_symlink(name, root + "/..new");
    std::filesystem::rename(root + "/..new", root + "/..data");
  };
  put("..first", first_);
  for (const char* const file : {"tls.crt", "tls.key", "ca.crt"}) {
    std::filesystem::create_symlink(std::string("..data/") + file, root + "/" + file);
  }
  Open({root + "/tls.crt", root + "/tls.key", root + "/ca.crt"});
  EXPECT_TRUE(Uses(first_));
  put("..second", second_);
  Look();
  EXPECT_TRUE(Uses(second_));
}

TEST_F(LiveTlsTest, WhatIsNoGoodNeverReplacesWhatIs) {
  Open(folder_.files());
  folder_.ReplaceKey(second_.key);
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 0) << "the certificate may be on its way";
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 1);
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 1) << "it is said once";
  EXPECT_TRUE(Uses(first_));
  EXPECT_EQ(taken_, 1);
  folder_.ReplaceKey("");
  Look();
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 2) << "another one";
  EXPECT_EQ(unlink(folder_.files().cert.c_str()), 0);
  Look();
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 3);
  EXPECT_TRUE(Uses(first_));
  folder_.Replace(second_);
  Look();
  EXPECT_TRUE(Uses(second_));
  EXPECT_EQ(metrics_.reloaded.Value(), 1);
}

TEST_F(LiveTlsTest, WhatIsGoodLaterIsTakenThen) {
  Open(folder_.files());
  const TestCertificate later = ca_.Sign({.begins = absl::Minutes(30), .ends = absl::Hours(3)});
  folder_.Replace(later);
  for (int i = 0; i < 4; ++i) Look();
  EXPECT_TRUE(Uses(first_));
  EXPECT_EQ(metrics_.failed.Value(), 1) << "it is said once";
  now_ += absl::Minutes(31);
  Look();
  EXPECT_TRUE(Uses(later)) << "with no change of the files";
  Look();
  EXPECT_EQ(metrics_.reloaded.Value(), 1);
  EXPECT_EQ(metrics_.failed.Value(), 1);
}

TEST_F(LiveTlsTest, WhatIsNotTakenIsOfferedAgain) {
  Open(folder_.files());
  const absl::Time before = tls_->material().expires;
  folder_.Replace(second_);
  takes_ = absl::ResourceExhaustedError("no descriptor is left");
  Look();
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 1);
  EXPECT_EQ(metrics_.reloaded.Value(), 0);
  EXPECT_EQ(tls_->material().expires, before);
  takes_ = absl::OkStatus();
  Look();
  EXPECT_TRUE(Uses(second_));
  EXPECT_EQ(metrics_.reloaded.Value(), 1);
}

TEST_F(LiveTlsTest, TwoFilesThatAreWrittenOneAfterTheOtherAreNoFailure) {
  Open(folder_.files());
  folder_.ReplaceKey(second_.key);
  Look();
  folder_.Replace(second_);
  Look();
  EXPECT_TRUE(Uses(second_));
  EXPECT_EQ(metrics_.failed.Value(), 0);
}

TEST_F(LiveTlsTest, WhatWasPutBackIsNoChange) {
  Open(folder_.files());
  folder_.ReplaceKey(second_.key);
  Look();
  folder_.ReplaceKey(first_.key);
  Look();
  folder_.ReplaceKey(second_.key);
  Look();
  EXPECT_EQ(metrics_.failed.Value(), 0);
  EXPECT_EQ(taken_, 1);
}

}  // namespace
}  // namespace runahead
