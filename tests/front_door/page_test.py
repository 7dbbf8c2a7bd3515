"""The gateway's page at `/`, in a Chromium, before a real cluster. What it looks like is kept as pictures.

usage: page_test.py PICTURES RUNAHEAD MAKE_SYNTHETIC_GGUF
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import browser  # noqa: E402, beside this file
import fixture  # noqa: E402
import live  # noqa: E402
import tools  # noqa: E402

PICTURES = pathlib.Path(sys.argv.pop(1))
# The model writes noise, in which an end may come at once: answers are as long as they may be.
NO_EARLY_END = """(() => {
  const plain = window.fetch;
  window.fetch = (url, options) => plain(url, options.body
    ? {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options);
})()"""


class PageTest(fixture.ClusterTest):
    def setUp(self):
        self.page = self.enterContext(browser.Browser(self.enterContext(fixture.tempfile.TemporaryDirectory()),
                                                      self.cluster.http.removesuffix("v1")))
        self.page.until("document.readyState === 'complete' && document.activeElement.id === 'question'")
        self.page.evaluate(NO_EARLY_END)

    def text(self, selector):
        return self.page.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''")

    def set(self, field, value):
        self.page.evaluate(f"document.getElementById({field!r}).value = {value!r}")

    def test_a_question_is_answered_with_plan_and_stages(self):
        self.page.until("document.getElementById('model').textContent.startsWith('synthetic, ')")
        self.set("tokens", "24")
        for question in ("Who are you?", "And why?"):
            self.page.type(question)
            self.page.press("Enter")
            self.page.until("!document.getElementById('stop').disabled || !document.getElementById('facts').hidden")
            self.page.until("document.getElementById('stop').disabled && !document.getElementById('facts').hidden")
            self.assertEqual(self.page.evaluate("document.querySelector('#turns .user:nth-last-child(2)').innerText"), question)
            self.assertTrue(self.page.evaluate("document.querySelector('#turns .assistant:last-child').innerText"))
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#turns li').length"), 4)
        self.assertIn("first token after ", self.text("#summary"))
        for stage in ("queue", "prefill"):
            self.assertIn(stage, self.text("#stages"))
        for part in ("prefill-0", "prefill-1", "decode-0", "tokens"):
            self.assertIn(part, self.text("#plan"))
        self.page.screenshot(PICTURES / "page.png")
        self.page.dark()
        self.page.screenshot(PICTURES / "page_dark.png")
        self.assertEqual(self.page.complaints, [])

    def test_stop_ends_the_request_and_keeps_what_came(self):
        self.set("tokens", str(fixture.LONG))
        self.page.type("Go on and on.")
        self.page.press("Enter")
        self.page.until("document.querySelector('#turns .assistant')?.innerText")
        self.page.press("Escape")
        self.page.until("document.querySelector('#turns .assistant').innerText.includes('(stopped)')")
        live.until(lambda: "\nrunahead_kv_leases 0\n" in self.cluster.page("decode-0"), "the lease is given back")
        self.assertTrue(self.page.evaluate("document.getElementById('facts').hidden"))
        self.assertEqual(self.page.complaints, [])

    def test_what_is_refused_is_said_and_may_be_sent_again(self):
        self.set("tokens", "0")
        self.page.type("A question.")
        self.page.press("Enter")
        # The form itself refuses it: nothing is sent.
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#turns li').length"), 0)
        self.set("tokens", "")
        self.set("question", "word " * 2 * fixture.CONTEXT)
        self.page.press("Enter")
        self.page.until("document.getElementById('error').textContent.startsWith('400: ')")
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#turns li').length"), 0)
        self.assertTrue(self.page.evaluate("document.getElementById('question').value"))


if __name__ == "__main__":
    if browser.program() is None:
        print("did not run here: the gateway's page in a browser: no Chromium (Debian's package chromium)")
        sys.exit(tools.SKIPPED)
    fixture.main()
