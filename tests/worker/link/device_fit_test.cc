#include "worker/link/device_fit.h"

#include <string>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr char kOwn[] = "nccl 2.27.7 GPU-1c9e host 8f3a";

bool Fit(const std::string& a, const std::string& b) {
  EXPECT_EQ(DeviceLinkFits(a, b).ok(), DeviceLinkFits(b, a).ok()) << a << " | " << b;
  return DeviceLinkFits(a, b).ok();
}

TEST(DeviceFit, TwoGpusOfOneLibraryFit) {
  EXPECT_TRUE(Fit(kOwn, "nccl 2.27.7 GPU-77aa host 8f3a")) << "on one host";
  EXPECT_TRUE(Fit(kOwn, "nccl 2.27.7 GPU-77aa host 0001")) << "on two";
  EXPECT_TRUE(Fit(kOwn, "nccl 2.27.7 GPU-1c9e host 0001")) << "one GPU that passes for two hosts'";
}

TEST(DeviceFit, OneGpuIsNotTwoRanks) {
  EXPECT_FALSE(Fit(kOwn, kOwn));
  EXPECT_NE(DeviceLinkFits(kOwn, kOwn).message().find("one GPU"), std::string::npos);
}

TEST(DeviceFit, VersionsMustBeTheSame) {
  EXPECT_FALSE(Fit(kOwn, "nccl 2.27.8 GPU-77aa host 0001"));
  EXPECT_FALSE(Fit(kOwn, "rccl 2.27.7 GPU-77aa host 0001"));
  EXPECT_NE(DeviceLinkFits(kOwn, "nccl 2.28.9 GPU-77aa host 0001").message().find("2.28.9"), std::string::npos);
}

TEST(DeviceFit, WhoHasNoneOrSaysNonsenseDoesNotFit) {
  for (const char* peer : {"", " ", "nccl", "nccl 2.27.7 GPU-77aa", "nccl 2.27.7 GPU-77aa host ",
                           "nccl 2.27.7  host 0001", "nccl 2.27.7 GPU-77aa guest 0001", "a b c host d e"}) {
    EXPECT_FALSE(Fit(kOwn, peer)) << peer;
    EXPECT_FALSE(Fit("", peer)) << peer;
  }
  EXPECT_EQ(DeviceLinkFits(kOwn, std::string(100'000, '\n')).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_LT(DeviceLinkFits(kOwn, std::string(100'000, '\n')).message().size(), 1500u);
}

}  // namespace
}  // namespace runahead
