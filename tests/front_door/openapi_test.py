"""Schemathesis against a real cluster: what it makes of the gateway's own description (/openapi.json), right and wrong
requests, never makes it fail, and every answer is one that the description has.

usage: openapi_test.py RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import fixture  # noqa: E402
import live  # noqa: E402

fixture.CONTEXT = 256  # who says nothing of tokens has all that the context leaves
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "negative_data_rejection", "allow_header_conformance")
EXAMPLES = 25  # of each operation
PATIENCE = 280  # seconds, for all of them


class OpenApiTest(fixture.ClusterTest):
    def test_no_request_of_the_description_makes_it_fail(self):
        if importlib.util.find_spec("schemathesis") is None:
            fixture.skip(self, "schemathesis is not installed (tests/front_door/requirements.txt)")
        root = self.cluster.http.removesuffix("/v1")
        run = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", root + "/openapi.json", f"--checks={','.join(CHECKS)}",
             "--phases=examples,coverage,fuzzing", f"--max-examples={EXAMPLES}", "--seed=36", "--no-color",
             "--suppress-health-check=all", f"--request-timeout={live.PATIENCE}", "--warnings=off"],
            cwd=self.enterContext(tempfile.TemporaryDirectory()), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertRegex(run.stdout, r"\d{3,} generated")


if __name__ == "__main__":
    fixture.main()
