#include "server/rpc/structure_proto.h"

#include "gtest/gtest.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

TEST(StructureProto, GoesThereAndBack) {
  for (const StructureSpec& spec : {
           StructureSpec{.kind = StructureKind::kJsonSchema, .text = "{}", .before = "a", .behind = "b"},
           StructureSpec{.kind = StructureKind::kJsonObject},
           StructureSpec{.kind = StructureKind::kRegex, .text = "a+"},
           StructureSpec{.kind = StructureKind::kGrammar, .text = "root ::= \"a\""},
           StructureSpec{.kind = StructureKind::kChoice, .choices = {"a", "b"}},
       }) {
    const auto back = StructureFromProto(StructureToProto(spec));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, spec);
  }
}

TEST(StructureProto, NeedsAForm) {
  v1::Structure structure;
  EXPECT_EQ(BlamedField(StructureFromProto(structure).status()), "structure");
  structure.set_json_object(false);
  EXPECT_EQ(BlamedField(StructureFromProto(structure).status()), "structure");
}

}  // namespace
}  // namespace runahead
