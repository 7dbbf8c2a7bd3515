#include "server/gateway/openai/tool_places.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

const ToolPlaces& Changed() {
  static const auto& places = *new ToolPlaces{
      .kept = {{"/$defs/tool0/anyOf", {1, 3}}, {"/$defs/tool0/anyOf/1/oneOf", {2}}, {"/$defs/b_objects/enum", {4}}},
      .made_of = {{"b_objects", "b"}}};
  return places;
}

TEST(ToolPlaces, AreThoseOfWhatCame) {
  EXPECT_EQ(GivenPlace("/$defs/tool0/anyOf/1/oneOf/0/items: why", Changed()),
            "/$defs/tool0/anyOf/3/oneOf/2/items: why");
  EXPECT_EQ(GivenPlace("/$defs/tool0/anyOf/0: why", Changed()), "/$defs/tool0/anyOf/1: why");
  EXPECT_EQ(GivenPlace("/$defs/b_objects/enum/0", Changed()), "/$defs/b/enum/4");
}

TEST(ToolPlaces, WhatIsNotKnownStays) {
  for (const char* text : {"", "the root: why", "/anyOf/0: why", "/$defs/tool1/anyOf/1", "/$defs/tool0/anyOf/7/a: b",
                           "/$defs/tool0/anyOf/x", "/$defs/tool0/properties/b_objects: why", "/", "//: /"}) {
    EXPECT_EQ(GivenPlace(text, Changed()), text);
  }
}

TEST(ToolPlaces, ANameMayHaveAColon) {
  EXPECT_EQ(GivenPlace("/$defs/tool0/anyOf/1/properties/a:b/items: /anyOf/1", Changed()),
            "/$defs/tool0/anyOf/3/properties/a:b/items: /anyOf/1");
}

}  // namespace
}  // namespace runahead
