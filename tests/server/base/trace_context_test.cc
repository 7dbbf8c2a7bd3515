#include "server/base/trace_context.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpanId[] = "b7ad6b7169203331";

std::string Header(const std::string& version = "00", const std::string& trace = kTraceId,
                   const std::string& span = kSpanId, const std::string& flags = "01") {
  return version + "-" + trace + "-" + span + "-" + flags;
}

TEST(Traceparent, IsReadAsTheStandardSays) {
  const auto context = ParseTraceparent(Header());
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTraceId);
  EXPECT_EQ(context->span_id, kSpanId);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(Traceparent(*context), Header());
}

TEST(Traceparent, OneBitSaysSampled) {
  for (const auto& [flags, sampled] : {std::pair("00", false), std::pair("01", true), std::pair("02", false),
                                       std::pair("03", true), std::pair("fe", false), std::pair("ff", true)}) {
    const auto context = ParseTraceparent(Header("00", kTraceId, kSpanId, flags));
    ASSERT_TRUE(context.has_value()) << flags;
    EXPECT_EQ(context->sampled, sampled) << flags;
    EXPECT_EQ(Traceparent(*context), Header("00", kTraceId, kSpanId, sampled ? "01" : "00")) << "other flags end here";
  }
}

TEST(Traceparent, WhatIsMalformedIsNone) {
  const std::string zeros(32, '0');
  const std::string malformed[] = {
      "",
      "00",
      Header() + "-",
      Header() + "0",
      Header() + "-what-the-future-will-be-like",
      " " + Header(),
      Header() + " ",
      Header().substr(0, 54),
      Header("ff"),
      Header("0"),
      Header("0G"),
      Header("00", zeros),
      Header("00", kTraceId, zeros.substr(0, 16)),
      Header("00", "0AF7651916CD43DD8448EB211C80319C"),
      Header("00", "0af7651916cd43dd8448eb211c8031"),
      Header("00", kTraceId, "b7ad6b716920333g"),
      Header("00", kTraceId, kSpanId, "0x"),
      Header("00", kTraceId, kSpanId, "1"),
      "00_" + Header().substr(3),
      Header().substr(0, 35) + "_" + Header().substr(36),
      Header().substr(0, 52) + "_" + Header().substr(53),
      "01" + Header().substr(2) + "00",
  };
  for (const std::string& header : malformed) EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
}

TEST(Traceparent, LaterVersionsMaySayMore) {
  for (const std::string& header : {Header("01"), Header("cc") + "-what-the-future-will-be-like"}) {
    const auto context = ParseTraceparent(header);
    ASSERT_TRUE(context.has_value()) << header;
    EXPECT_EQ(Traceparent(*context), Header()) << "what goes on is of the version known here";
  }
}

TEST(Traceparent, ANewSpanIsOfItsParentsTraceOrOfANewOne) {
  const TraceContext first = NewSpan(std::nullopt, true), second = NewSpan(std::nullopt, false);
  const TraceContext child = NewSpan(first, true);
  EXPECT_EQ(child.trace_id, first.trace_id);
  EXPECT_NE(child.span_id, first.span_id);
  EXPECT_NE(second.trace_id, first.trace_id);
  for (const TraceContext& context : {first, second, child}) {
    const auto read = ParseTraceparent(Traceparent(context));
    ASSERT_TRUE(read.has_value()) << Traceparent(context);
    EXPECT_EQ(read->sampled, context.sampled);
  }
}

}  // namespace
}  // namespace runahead
