// `runahead plan show` as a program.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/text_file.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::TestProcess;

constexpr char kTable[] =
    "version: 1\nmodel: tiny\nschedule: kvr\nentries:\n  - {width: 2, tokens: 1000, fractions: [.6, .4]}\n";

class PlanShowTest : public ::testing::Test {
 protected:
  PlanShowTest() : folder_(absl::StrCat(::testing::TempDir(), "plan_show_test.", getpid())) {
    std::filesystem::create_directory(folder_);
    Write("table.yaml", kTable);
  }
  ~PlanShowTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(Path(name)) << text; }
  std::string Read(const std::string& name) const { return ReadTextFile(Path(name), 1 << 20).value(); }

  void Run(std::vector<std::string> more) {
    more.insert(more.begin(), {RUNAHEAD_BINARY, "plan", "show"});
    TestProcess process(more);
    code_ = process.Wait();
    out_ = process.out();
    err_ = process.err();
  }

  const std::string folder_;
  int code_ = -1;
  std::string out_;
  std::string err_;
};

TEST_F(PlanShowTest, PrintsTheTable) {
  Run({Path("table.yaml")});
  EXPECT_EQ(code_, 0) << err_;
  EXPECT_THAT(err_, IsEmpty());
  EXPECT_THAT(out_, AllOf(StartsWith("tiny, schedule kvr\n"), HasSubstr("Width 2\n"),
                          HasSubstr("1000  600 (60.0%), 400 (40.0%)\n")));
}

TEST_F(PlanShowTest, WritesThePicture) {
  Write("t.svg", "an older one");
  Run({Path("table.yaml"), "--svg", Path("t.svg")});
  EXPECT_EQ(code_, 0) << err_;
  EXPECT_THAT(Read("t.svg"), AllOf(StartsWith("<svg "), HasSubstr("600 (60%)")));
  EXPECT_THAT(out_, HasSubstr("Width 2\n"));
}

TEST_F(PlanShowTest, RefusesABadTableAndOverwritesNothing) {
  Write("t.svg", "an older one");
  Write("table.yaml", "version: 1\nschedule: kvr\nentries:\n  - {width: 2, tokens: 1000, fractions: [.6, .5]}\n");
  Run({Path("table.yaml"), "--svg", Path("t.svg")});
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(err_, AllOf(StartsWith("runahead plan show: INVALID_ARGUMENT: "),
                          HasSubstr("table.yaml:4: entries[0]: fractions: they add up to 1.1, not to 1")));
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_EQ(Read("t.svg"), "an older one");
}

TEST_F(PlanShowTest, RefusesToWriteOverTheTable) {
  std::filesystem::create_symlink("table.yaml", Path("link.svg"));
  for (const char* const name : {"table.yaml", "link.svg"}) {
    Run({Path("table.yaml"), "--svg", Path(name)});
    EXPECT_EQ(code_, 2);
    EXPECT_THAT(err_, HasSubstr("--svg: " + Path(name) + " is the table itself"));
    EXPECT_EQ(Read("table.yaml"), kTable);
  }
}

TEST_F(PlanShowTest, SaysWhichFileItCannotUse) {
  Run({Path("gone.yaml")});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(err_, HasSubstr("cannot read " + Path("gone.yaml") + ": No such file"));
  Run({Path("table.yaml"), "--svg", Path("no/folder/t.svg")});
  EXPECT_EQ(code_, 1);
  EXPECT_THAT(err_, HasSubstr("cannot write " + Path("no/folder/t.svg")));
  EXPECT_THAT(out_, IsEmpty());
  Run({});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(err_, HasSubstr("missing: TABLE"));
  Run({Path("table.yaml"), "--sgv", "x"});
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(err_, HasSubstr("did you mean --svg?"));
}

}  // namespace
}  // namespace runahead
