#include "client/plan/table_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PartitionFile Sample() {
  PartitionFile file;
  file.model = "tiny";
  file.dtype = "bf16";
  file.devices = {"gpu-a", "gpu-b"};
  file.link = "10 Gbit/s";
  file.date = "2026-01-31";
  file.entries = {{2, 2048, {.55, .45}, .32, {}, {}},
                  {1, 1024, {1}, .25, .25, .01},
                  {2, 1024, {.53, .47}, .17, .1875, .02},
                  {1, 2048, {1}, .5, .55, {}}};
  return file;
}

TEST(TableReport, ShowsEveryWidthByLength) {
  EXPECT_EQ(TableText(Sample()),
            "tiny, bf16, schedule kvr, 2026-01-31\n"
            "line gpu-a, gpu-b; link 10 Gbit/s\n"
            "\n"
            "Width 1\n"
            "  tokens  measured     +/-  predicted  tokens of each worker, head first\n"
            "    1024    0.25 s  0.01 s     0.25 s  1024 (100.0%)\n"
            "    2048    0.55 s       -      0.5 s  2048 (100.0%)\n"
            "\n"
            "Width 2\n"
            "  tokens  measured     +/-  predicted  tokens of each worker, head first\n"
            "    1024  0.1875 s  0.02 s     0.17 s  543 (53.0%), 481 (47.0%)\n"
            "    2048         -       -     0.32 s  1126 (55.0%), 922 (45.0%)\n"
            "\n"
            "Fastest width\n"
            "  tokens  width      time  others\n"
            "    1024      2  0.1875 s  0.25 s on 1\n"
            "    2048      2    0.32 s  0.55 s on 1\n");
}

TEST(TableReport, LeavesOutWhatNobodyKnows) {
  PartitionFile file;
  file.entries = {{2, 8192, {.6, .4}, {}, {}, {}}};
  EXPECT_EQ(TableText(file),
            "schedule kvr\n"
            "\n"
            "Width 2\n"
            "  tokens  tokens of each worker, head first\n"
            "    8192  4915 (60.0%), 3277 (40.0%)\n");
}

TEST(TableReport, CutsAsARouterDoes) {
  PartitionFile file;
  file.block = 64;
  file.entries = {{2, 8192, {.6004, .4}, {}, {}, {}}};  // adds up to 1.0004, which a table takes
  EXPECT_THAT(RowsOf(file)[0].parts, ElementsAre(4917, 3275));
  EXPECT_THAT(DescribeTable(file)[1], HasSubstr("in blocks of 64"));
}

TEST(TableReport, LetsNoFileMoveTheCursor) {
  PartitionFile file = Sample();
  file.model = "a\x1b[2Jb\nc \xc3\xa9";
  file.devices = {"x\ry", "z"};
  const std::string text = TableText(file);
  EXPECT_THAT(text, HasSubstr("a?[2Jb?c \xc3\xa9"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("x?y, z"));
}

}  // namespace
}  // namespace runahead
