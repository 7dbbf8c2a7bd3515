"""The example in C++, built as docs/clients.md says and run against a real cluster.

usage: cpp_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import fixture  # noqa: E402, beside this file
import live  # noqa: E402
import page  # noqa: E402

BUILD = "build-client"


class CppTest(fixture.ClusterTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # What is compiled stays for the next time, so folders are those that do, too.
        cls.build = pathlib.Path(os.environ.get("TEST_TMPDIR", cls.folder), BUILD)
        if shutil.which("ccache"):
            cls.environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        for command in page.commands("cmake -S examples/cpp"):
            text = command.replace(BUILD, str(cls.build))
            subprocess.run(["bash", "-c", text], cwd=page.ROOT, env=cls.environment, check=True, stdout=subprocess.DEVNULL)

    def generate(self, *arguments):
        command = [self.build / "generate", self.cluster.router, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=live.PATIENCE, check=False)

    def test_streams_what_the_command_line_gives(self):
        done = self.generate("Once upon a time")
        self.assertEqual(done.returncode, 0, done.stderr)
        ids = [int(one) for one in re.findall(r"^token (\d+)$", done.stdout, re.MULTILINE)]
        self.assertEqual(ids, self.answer("--prompt", "Once upon a time", max_tokens=32)["token_ids"])
        self.assertRegex(done.stdout, r"plan kvr: prefill-0 \(\d+\).*, decoded by decode-0\n")

    def test_a_deadline_ends_it(self):
        done = self.generate("Once upon a time", 0.5, fixture.LONG)
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed with code 4", done.stderr)  # DEADLINE_EXCEEDED

    def test_brings_the_api_key_of_the_environment(self):
        made = json.loads(subprocess.run([self.runahead, "keys", "new", "alice", "--json"], stdout=subprocess.PIPE,
                                         timeout=live.PATIENCE, check=True).stdout)
        folder = self.folder / "keyed"
        folder.mkdir()
        keys = folder / "api-keys.yaml"
        keys.write_text(f"keys: [{{name: {made['name']}, hash: {made['hash']}}}]")
        cluster = self.enterContext(live.Cluster(folder, self.runahead, "--model", self.model, "--threads", "1",
                                                 "--api-keys", keys))
        for key, code in ((made["key"], 0), ("guessed", 1)):
            done = subprocess.run([self.build / "generate", cluster.router, "Hello"], capture_output=True, text=True,
                                  timeout=live.PATIENCE, check=False, env={**os.environ, "RUNAHEAD_API_KEY": key})
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn("failed with code 16", done.stderr)  # UNAUTHENTICATED

    def test_the_documented_command_runs(self):
        for command in page.commands(f"{BUILD}/generate"):
            self.assertIn("first token after", self.shell(command.replace(BUILD, str(self.build))))


if __name__ == "__main__":
    fixture.main()
