#include "server/base/process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(ProcessOptions, AreReadLikeAllOthers) {
  ProcessOptions options;
  ConfigSchema schema;
  DeclareProcessOptions(schema, options);
  ASSERT_TRUE(ReadConfigText("listen: 0.0.0.0:9000\nlog_level: warning\ndrain_timeout: 5s\n", "p.yaml", schema).ok());
  EXPECT_EQ(options.listen, "0.0.0.0:9000");
  EXPECT_EQ(options.level(), LogLevel::kWarning);
  EXPECT_EQ(options.drain_timeout, absl::Seconds(5));
  EXPECT_THAT(std::string(ReadConfigText("ready_fd: 1", "p.yaml", schema).message()), HasSubstr("--ready-fd"));
}

TEST(Documentation, ListsEveryOptionWithItsDefault) {
  std::ifstream file("docs/configuration.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ProcessOptions options;
  ConfigSchema schema;
  DeclareProcessOptions(schema, options);
  for (const ConfigKey& key : schema.keys()) {
    const std::string shown = key.default_text.empty() ? "none" : "`" + key.default_text + "`";
    const std::string row =
        key.flag_only ? "| `" + FlagOfKey(key.name) + " N` | none |" : "| `" + key.name + "` | " + shown + " |";
    EXPECT_THAT(text, HasSubstr(row));
  }
}

TEST(Documentation, ShowsRefusalsAsTheyAre) {
  std::ifstream file("docs/configuration.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ProcessOptions options;
  ConfigSchema schema;
  DeclareProcessOptions(schema, options);
  EXPECT_THAT(text, HasSubstr(std::string(ReadConfigText("\nlog_levl: info", "router.yaml", schema).message())));
  ConfigValue value;
  value.kind = ConfigValue::Kind::kScalar;
  value.where = "--drain-timeout";
  value.scalar = "30";
  EXPECT_THAT(text, HasSubstr(std::string(schema.ApplyFlag("drain_timeout", value).message())));
}

TEST(WriteReadyLine, WritesOneLineOfJsonAndCloses) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_TRUE(WriteReadyLine(ends[1], "127.0.0.1:1234", "[::1]:5").ok());
  std::string text(256, '\0');
  text.resize(static_cast<size_t>(read(ends[0], text.data(), text.size())));
  EXPECT_EQ(text, "{\"address\":\"127.0.0.1:1234\",\"metrics\":\"[::1]:5\"}\n");
  char more;
  EXPECT_EQ(read(ends[0], &more, 1), 0);  // end of file: it was closed
  close(ends[0]);
}

TEST(WriteReadyLine, NamesABadDescriptorAndIgnoresNone) {
  EXPECT_TRUE(WriteReadyLine(-1, "a:1", "a:2").ok());
  const absl::Status status = WriteReadyLine(9999, "a:1", "a:2");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("ready_fd 9999"));
}

TEST(DieWithParent, RefusesAParentThatIsGone) {
  EXPECT_TRUE(DieWithParent(0).ok());
  EXPECT_TRUE(DieWithParent(getppid()).ok());
  EXPECT_EQ(DieWithParent(getpid()).code(), absl::StatusCode::kFailedPrecondition);
}

// A parent that dies takes its child along: both hold the pipe's end, so its end of file tells that both are gone.
TEST(DieWithParent, EndsTheGrandchild) {
  int ends[2], started[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(pipe(started), 0);
  const pid_t child = fork();
  if (child == 0) {
    const pid_t me = getpid();
    if (fork() == 0) {
      signal(SIGTERM, SIG_DFL);
      const bool ok = DieWithParent(me).ok();
      if (write(started[1], ok ? "y" : "n", 1) != 1) _exit(1);
      while (true) pause();
    }
    while (true) pause();
  }
  close(ends[1]);
  char answer = 0;
  ASSERT_EQ(read(started[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  char none;
  EXPECT_EQ(read(ends[0], &none, 1), 0);
  close(ends[0]);
  close(started[0]);
  close(started[1]);
}

}  // namespace
}  // namespace runahead
