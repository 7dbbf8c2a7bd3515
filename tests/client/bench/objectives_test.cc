#include "client/bench/objectives.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Objectives, AreMillisecondsByName) {
  const auto some = ParseObjectives("ttft:500,tpot:12.5");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->ttft, absl::Milliseconds(500));
  EXPECT_EQ(some->tpot, absl::Microseconds(12'500));
  EXPECT_FALSE(some->e2e.has_value());
  const auto as_vllm = ParseObjectives("e2el:1000");
  ASSERT_TRUE(as_vllm.ok()) << as_vllm.status();
  EXPECT_EQ(as_vllm->e2e, absl::Seconds(1));
}

TEST(Objectives, WhatIsNoneIsRefused) {
  for (const char* const wrong : {"", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:inf", "ttft:nan", "itl:5", "ttft:5,",
                                  "ttft:5,ttft:6", "e2e:5,e2el:6", "ttft=5"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseObjectives(wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace runahead
