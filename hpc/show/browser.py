"""A headless Chromium that opens pages: what they say as errors, and pictures of them.

Python's standard library only: the browser is spoken to in its DevTools protocol over two pipes, a JSON object a
message, each ended by a zero byte. It gets a profile of its own, which goes away with it, and nothing on the network.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

# Browsers by the names that distributions give them.
NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 120


def program():
    """The browser; without one the process ends with exit code 5 and says what to do."""
    named = os.environ.get("CHROMIUM")
    found = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if found is None:
        print(f"browser: no {named or 'Chromium'} here: apt-get install chromium, or name one in CHROMIUM=…",
              file=sys.stderr)
        sys.exit(5)
    return found


class Browser:
    """A browser with one page. `errors` are what that page has done wrong since it was opened."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()

        def pipes():
            # Chromium reads commands from 3 and answers to 4.
            one, other = os.dup(to_browser), os.dup(from_browser)
            os.dup2(one, 3)
            os.dup2(other, 4)

        command = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self.profile.name}",
                   "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.text, self.errors, self.events, self.session = 0, b"", [], [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        os.close(self.to)
        os.close(self.back)
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def ask(self, method, **parameters):
        """The result of a command; events that come before it are looked at."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"browser: {method}: {answer['error']['message']}")
                return answer["result"]

    def receive(self):
        """The next message."""
        until = time.monotonic() + LIMIT_S
        while b"\0" not in self.text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.back], [], [], left)[0]:
                sys.exit("browser: it says nothing any more")
            more = os.read(self.back, 1 << 20)
            if not more:
                sys.exit("browser: it has ended")
            self.text += more
        message, self.text = self.text.split(b"\0", 1)
        message = json.loads(message)
        self.look_at(message.get("method"), message.get("params", {}))
        return message

    def look_at(self, method, event):
        """Keeps what an event says of errors."""
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = event["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"a request for {url}")

    def open(self, path, width, dark=False, height=900):
        """Opens a file in a window of that width, and waits until it has been drawn."""
        self.errors, self.events = [], []
        theme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self.receive()
        # Two frames: what the first one has asked for is drawn in the second.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            self.errors.append(answer["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return answer["result"].get("value")

    def picture(self, path):
        """Writes a picture of the whole page, as PNG."""
        height = self.run("document.documentElement.scrollHeight")
        width = self.run("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))
