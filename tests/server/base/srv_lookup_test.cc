#include "server/base/srv_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/name_server.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr char kService[] = "_worker._tcp.prefill.example.test";

class SrvLookupTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::set<std::string>> LookUp() { return LookUpSrv(kService, names_.address()); }
  testing::NameServer names_;
};

TEST_F(SrvLookupTest, GivesTargetsWithTheirPorts) {
  const std::set<std::string> targets = {"prefill-0.prefill.example.test:7000", "prefill-1.prefill.example.test:65535"};
  names_.Set(kService, targets);
  const auto named = LookUp();
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(*named, targets);
}

TEST_F(SrvLookupTest, AnAnswerMayBeTooLongForOneDatagram) {
  std::set<std::string> targets;
  for (int i = 0; i < 200; ++i) targets.insert(absl::StrCat("prefill-", i, ".prefill.example.test:", 7000 + i));
  names_.Set(kService, targets);
  const auto named = LookUp();
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(*named, targets);
}

TEST_F(SrvLookupTest, SaysWhyThereIsNoAnswer) {
  absl::Status why = LookUp().status();
  EXPECT_TRUE(absl::IsNotFound(why)) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr(kService));
  names_.Set(kService, {});
  EXPECT_TRUE(absl::IsNotFound(LookUp().status()));
  names_.Set(kService, {"a.example.test:1"});
  names_.Fail(true);
  EXPECT_TRUE(absl::IsUnavailable(LookUp().status()));
  names_.Fail(false);
  EXPECT_TRUE(LookUp().ok());
}

// As in a pod, whose namespace is a search domain. In a process of its own: the resolver reads its settings once.
TEST_F(SrvLookupTest, AShortNameIsSoughtInTheSearchDomains) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("LOCALDOMAIN", "other.test example.test", 1);
        names_.Set(kService, {"prefill-0.prefill.example.test:7000"});
        const auto named = LookUpSrv("_worker._tcp.prefill", names_.address());
        std::fprintf(stderr, "%s\n",
                     named.ok() ? absl::StrJoin(*named, ",").c_str() : named.status().ToString().c_str());
        std::_Exit(names_.asked("_worker._tcp.prefill.other.test") >= 1 ? 0 : 1);  // late answers are asked for again
      },
      ::testing::ExitedWithCode(0), "^prefill-0\\.prefill\\.example\\.test:7000");
}

TEST_F(SrvLookupTest, TheNameServerIsAnAddress) {
  for (const char* wrong : {"names.example.test:53", "[::1]:53", "127.0.0.1"}) {
    const absl::Status why = LookUpSrv(kService, wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(why)) << why;
  }
}

}  // namespace
}  // namespace runahead
