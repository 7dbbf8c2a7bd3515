"""aiperf loads `runahead up` by streamed chats: its times of the first token and its counts are there, and the counts are
those of the service. In the second tier, where it is installed: it is large (requirements-soak.txt).

usage: aiperf_test.py WRITE_TOKENIZER_FOLDER RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402
import tools  # noqa: E402

WRITE = sys.argv.pop(-3)
# Beside the interpreter, or of a virtual environment whose programs are in the path.
AIPERF = shutil.which("aiperf", path=os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"])))
REQUESTS, OUTPUT_TOKENS = 10, 8
PATIENCE = 280  # seconds, of which it needs most to start


class AiperfTest(fixture.ClusterTest):
    def total(self, name):
        """Of a counter at the router."""
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", self.cluster.page("router"), re.MULTILINE)))

    def test_a_load_of_chats_is_measured(self):
        subprocess.run([WRITE, "model", self.model, self.folder / "tokenizer"], timeout=live.PATIENCE, check=True)
        with zipfile.ZipFile(self.folder / "tokenizer.zip") as archive:
            archive.extractall(self.folder / "tokenizer")
        prompts, outputs = self.total("runahead_prompt_tokens_total"), self.total("runahead_generated_tokens_total")
        run = subprocess.run(
            [AIPERF, "profile", "--model", "synthetic", "--url", self.cluster.http.removesuffix("/v1"),
             "--endpoint-type", "chat", "--streaming", "--request-count", str(REQUESTS), "--concurrency", "2",
             "--isl", "60", "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
             "--tokenizer", self.folder / "tokenizer", "--ui", "none", "--artifact-dir", self.folder / "aiperf"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(run.returncode, 0, run.stdout[-4000:])
        (written,) = (self.folder / "aiperf").rglob("profile_export_aiperf.json")
        report = json.loads(written.read_text())
        self.assertEqual(report["request_count"]["avg"], REQUESTS)
        self.assertFalse(report.get("error_summary"), run.stdout[-4000:])
        self.assertGreater(report["time_to_first_token"]["min"], 0)
        self.assertLessEqual(report["time_to_first_token"]["max"], report["request_latency"]["max"])
        self.assertEqual((report["output_sequence_length"]["min"], report["output_sequence_length"]["max"]),
                         (OUTPUT_TOKENS, OUTPUT_TOKENS))
        self.assertEqual(report["output_sequence_length"]["avg"] * REQUESTS,
                         self.total("runahead_generated_tokens_total") - outputs)
        self.assertEqual(round(report["input_sequence_length"]["avg"] * REQUESTS),
                         self.total("runahead_prompt_tokens_total") - prompts)


if __name__ == "__main__":
    if AIPERF is None:
        print("did not run here: aiperf against the gateway: it is not installed (tests/front_door/requirements-soak.txt)")
        sys.exit(tools.SKIPPED)
    fixture.main()
