"""A Chromium without a window, driven by its DevTools protocol over a pipe: JSON, each message with a zero byte behind it."""

import base64
import json
import os
import pathlib
import select
import signal
import shutil
import subprocess
import time

PATIENCE = 60  # seconds that anything here may take


def program():
    """The path of a Chromium of this machine, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def runs(group):
    """Whether a process of that group is left that has not ended."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it went away
            continue
        if int(of_group) == group and state not in "ZX":
            return True
    return False


class Browser:
    """One page. `complaints` are what it logs as an error, as an uncaught exception or a broken Content-Security-Policy."""

    def __init__(self, folder, url):
        command_end, self.commands = os.pipe()
        self.events, event_end = os.pipe()
        chromium = [program(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                    "--disable-dev-shm-usage", "--no-first-run", "--window-size=900,1200",
                    f"--user-data-dir={pathlib.Path(folder, 'chromium')}", "about:blank"]
        # It reads from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{command_end} 4>&{event_end}'
        self.process = subprocess.Popen(["bash", "-c", script, "chromium", *chromium], pass_fds=[command_end, event_end],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        os.close(command_end)
        os.close(event_end)
        self.bytes, self.sent, self.session, self.complaints = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Its processes end later than itself, and write to its folder until then.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + PATIENCE
        while runs(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(self.commands)
        os.close(self.events)

    def read(self, deadline):
        """The next message."""
        while b"\0" not in self.bytes:
            if not select.select([self.events], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError("Chromium says nothing")
            more = os.read(self.events, 1 << 16)
            if not more:
                raise AssertionError("Chromium has ended")
            self.bytes += more
        text, _, self.bytes = self.bytes.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (said := self.read(deadline)).get("id") != self.sent:
            self.hear(said)
        if "error" in said:
            raise AssertionError(f"{method}: {said['error']}")
        return said["result"]

    def hear(self, said):
        parameters = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"].get("exception", parameters["exceptionDetails"]))
        elif said.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression):
        """What the expression gives as soon as that is true."""
        deadline = time.monotonic() + PATIENCE
        while not (got := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"still not: {expression}; {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)
        return got

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, modifiers=0):
        codes = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def dark(self):
        """As where the system prefers dark colours."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
