#!/usr/bin/env python3
# Owns: the report in a browser: pages are opened from files in a headless Chromium that has no network, on a desk and on
# a phone, light and dark, and looked at through the DevTools protocol.
# Keeps: nothing is asked for outside the page; no test waits for a time, only for a state.
"""usage: browser_test.py MAKE_PAGE RECORDS [--keep DIRECTORY]

MAKE_PAGE makes pages of records (tests/report/make_page.cpp); RECORDS is tests/report/data. With --keep, a picture of
every page is left in DIRECTORY. Exit code 77: there is no Chromium here."""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile

DESK, PHONE = (1400, 900), (360, 740)
FAILURES = []


def find_browser():
    for name in (os.environ.get("CHROME"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = name and shutil.which(name)
        if path:
            return path
    return None


class Browser:
    """One headless browser, spoken to over two pipes; messages end with a zero byte."""

    def __init__(self, program, profile):
        read_end, self.write_fd = os.pipe()
        self.read_fd, write_end = os.pipe()

        def wire():  # the browser reads from 3 and writes to 4
            a, b = os.dup(read_end), os.dup(write_end)
            os.dup2(a, 3)
            os.dup2(b, 4)

        arguments = [program, "--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                     "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=" + profile, "--disable-dev-shm-usage",
                     "about:blank"]
        if os.geteuid() == 0:
            arguments.insert(1, "--no-sandbox")
        self.process = subprocess.Popen(arguments, close_fds=False, preexec_fn=wire, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(read_end)
        os.close(write_end)
        self.buffer, self.number, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.tab(domain + ".enable")

    def message(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.read_fd, 1 << 20)
            if not piece:
                raise RuntimeError("the browser went away")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self.write_fd, json.dumps(request).encode() + b"\0")
        while True:
            m = self.message()
            if m.get("id") == self.number:
                if "error" in m:
                    raise RuntimeError(method + ": " + m["error"]["message"])
                return m["result"]
            self.events.append(m)

    def tab(self, method, **params):
        return self.call(method, self.session, **params)

    def open(self, url, size, dark):
        self.events.clear()
        self.tab("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1,
                 mobile=size[0] < 500)
        self.tab("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.tab("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.message())

    def value(self, expression):
        result = self.tab("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + json.dumps(result["exceptionDetails"])[:600])
        return result["result"].get("value")

    def errors(self):
        out = []
        for e in self.events:
            if e.get("method") == "Runtime.exceptionThrown":
                details = e["params"]["exceptionDetails"]
                out.append(details.get("exception", {}).get("description") or details["text"])
            if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] in ("error", "warning"):
                out.append(e["params"]["entry"]["text"])
            if e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning"):
                out.append(" ".join(str(a.get("value")) for a in e["params"]["args"]))
        return out

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def picture(self, path):
        size = self.tab("Page.getLayoutMetrics")["cssContentSize"]
        data = self.tab("Page.captureScreenshot", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def close(self):
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def check(holds, name, what):
    if not holds:
        FAILURES.append(name + ": " + what)
        print("FAILED", name + ":", what, flush=True)


# Of each plot: whether it has a picture, and whether that has more than one colour; or why there is none.
PLOTS = """[...document.querySelectorAll("#plots > section")].filter((card) => card.querySelector(".body")).map((card) => {
  const canvas = card.querySelector("canvas");
  const absent = card.querySelector(".absent-plot");
  let colours = 0;
  if (canvas) {
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    colours = new Set(pixels).size;
  }
  return {id: card.id, canvas: canvas !== null, colours, absent: absent && absent.textContent,
          how: card.querySelector(".how").textContent, title: card.querySelector("h2").textContent};
})"""

# The heads of the columns of figures that are seen whole, without scrolling.
SEEN = """(() => {
  const box = document.querySelector("#summary .scroll").getBoundingClientRect();
  return [...document.querySelector("#summary .scroll").querySelectorAll("thead th")]
    .filter((h) => h.textContent && h.getBoundingClientRect().right <= box.right + 1).map((h) => h.textContent).slice(0, 2);
})()"""

# The smallest contrast of any text with what is behind it (WCAG 2, relative luminance).
CONTRAST = """(() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
    if (e.closest("[aria-pressed=false]") || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName)) continue;
    let back = [0, 0, 0, 0];
    for (let p = e; p && back[3] < 1; p = p.parentElement) back = parse(getComputedStyle(p).backgroundColor);
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(back)];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < worst[0]) worst = [contrast, e.tagName + " " + e.className + " " + e.textContent.slice(0, 40)];
  }
  return worst;
})()"""


def look(browser, name, url, size, dark, expected, keep):
    name = "%s, %d wide, %s" % (name, size[0], "dark" if dark else "light")
    browser.open(url, size, dark)
    check(browser.value("document.documentElement.dataset.state") == "ready", name, "the page did not get ready")
    check(browser.errors() == [], name, "errors: %r" % browser.errors())
    outside = [u for u in browser.requests() if not u.startswith(("file://", "data:"))]
    check(outside == [], name, "asked for %r" % outside)
    wide = browser.value("document.documentElement.scrollWidth")
    check(wide <= size[0], name, "is %s wide, so it scrolls sideways" % wide)
    plots = browser.value(PLOTS)
    for p in plots or []:
        where = name + ", plot " + p["id"]
        if p["absent"]:
            check(not p["canvas"], where, "both a picture and a reason why there is none")
        else:
            check(p["canvas"] and p["colours"] > 3, where, "is blank")
            check(len(p["how"]) > 20, where, "does not say how to read it")
        check(p["title"], where, "has no title")
    drawn = {p["id"] for p in plots or [] if not p["absent"]}
    check(expected is None or drawn == expected, name, "plots drawn: %s" % sorted(drawn))
    contrast, what = browser.value(CONTRAST)
    check(contrast >= 4.5, name, "contrast %.2f of %r" % (contrast, what))
    if keep:
        browser.picture(os.path.join(keep, name.replace(", ", "-").replace(" ", "-") + ".png"))


ALL = {"speed", "total", "parts", "layers", "cache", "latency", "memory", "experts"}
PAGES = [  # name, records, plots that are drawn, texts that are there
    ("one", ["complete"], ALL, ["Speed over the run", "Configuration", "made up 6x16", "cache hit rate", "set"]),
    ("two", ["small_cache", "large_cache"], ALL | {"speeds", "ratio"},
     ["2 runs compared", "B / A", "B is faster", "A and B wrote", "options", "cache_mb", "95 %"]),
    ("three", ["small_cache", "large_cache", "complete"], ALL | {"speeds", "ratio"}, ["3 runs compared", "C / A"]),
    ("killed", ["killed"], ALL - {"latency", "experts"}, ["the record ends after row 1", "in the middle of a line"]),
    ("nulls", ["nulls"], set(), ["not measured", "interrupted"]),
    ("header", ["header_only"], set(), ["No rows"]),
    ("prefill", ["prefill_only"], ALL, ["prefill speed"]),
    ("row", ["one_row"], None, ["decode speed"]),
    ("graph", ["GRAPH"], ALL, ["single tokens, speed", "Only llama.cpp's graph was recorded"]),
    ("hostile", ["hostile"], ALL, ["<b>bold</b></script>", "failed"]),
    ("race", ["../races/win"], {"race0"}, ["Ratios to stock", "faster"]),
    ("races", ["../races/killed", "../races/hostile", "../races/drift", "complete"], None, ["drift: discarded", "did not end"]),
    ("mixed", ["nulls", "header_only", "complete", "hostile"], None, ["4 runs compared", "not measured"]),
]


def main():
    arguments = sys.argv[1:]
    keep = arguments[arguments.index("--keep") + 1] if "--keep" in arguments else None
    if keep:
        os.makedirs(keep, exist_ok=True)
    make_page, records = arguments[0], os.path.abspath(arguments[1])
    program = find_browser()
    if program is None:
        print("there is no Chromium here: scripts/setup.sh --test-packages installs it")
        return 77
    with tempfile.TemporaryDirectory(prefix="sluice-browser-", ignore_cleanup_errors=True) as work:
        browser = Browser(program, os.path.join(work, "profile"))
        try:
            with open(os.path.join(records, "complete.jsonl"), encoding="utf-8") as loop, \
                    open(os.path.join(work, "GRAPH.jsonl"), "w", encoding="utf-8") as graph:
                graph.write(loop.read().replace('"scope":"loop"', '"scope":"graph"', 1))
            for name, files, expected, texts in PAGES:
                page = os.path.join(work, name + ".html")
                subprocess.run([make_page, page] + [os.path.join(work if f == "GRAPH" else records, f + ".jsonl") for f in files],
                               check=True)
                url = "file://" + page
                look(browser, name, url, DESK, False, expected, keep)
                shown = browser.value("document.body.innerText + ' ' + document.body.textContent")
                for text in texts:
                    check(text in shown, name, "%r is not in the page" % text)
                check(browser.value("document.title").startswith("Sluice report: "), name, "the title is another one")
                check(browser.value("document.querySelectorAll('b').length") == 0, name, "a record's text became markup")
                if name == "graph":
                    for text in ("whole loop", "prefill", "decode"):
                        check(not browser.value("document.getElementById('main').innerText.includes(%r)" % text), name,
                              "%r is said of a record of graphs" % text)
                look(browser, name, url, PHONE, True, expected, keep)
                if name == "two":
                    check(browser.value(SEEN) == ["A decode", "B decode"], name,
                          "a phone shows of the figures %r" % browser.value(SEEN))
                if name in ("one", "two"):
                    look(browser, name, url, PHONE, False, expected, keep)
                    look(browser, name, url, DESK, True, expected, keep)
                if name == "two":
                    use_it(browser, name)
            without_scripts(browser, "file://" + os.path.join(work, "one.html"))
        finally:
            browser.close()
    print("%d failures" % len(FAILURES))
    return 1 if FAILURES else 0


def use_it(browser, name):
    """Every button twice, which shows again what it hid; the plots stay, and the reader's colours are followed."""
    browser.events.clear()
    browser.value("for (const b of [...document.querySelectorAll('button')]) b.click()")
    browser.value("for (const b of [...document.querySelectorAll('.legend button')]) b.click()")
    check(browser.errors() == [], name, "errors after clicks: %r" % browser.errors())
    before = browser.value("getComputedStyle(document.body).backgroundColor")
    browser.tab("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    check(browser.value("getComputedStyle(document.body).backgroundColor") != before, name, "does not follow the colours")
    browser.value("for (const t of ['beforeprint', 'afterprint']) window.dispatchEvent(new Event(t))")
    check(all(p["colours"] > 3 for p in browser.value(PLOTS) if not p["absent"]), name, "a plot is blank after use")
    check(browser.errors() == [], name, "errors after printing: %r" % browser.errors())
    # A finger on the middle of the first plots shows what is there.
    for plot in ("speed", "parts", "cache", "latency"):
        box = browser.value("(() => { const c = document.querySelector('#%s canvas'); c.scrollIntoView({block: 'center'}); "
                            "const b = c.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()" % plot)
        browser.tab("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        tip = browser.value("new Promise((done) => { let n = 0; const look = () => { "
                            "const t = document.querySelector('#%s .tip')?.textContent; "
                            "if (t || ++n > 300) done(t || ''); else requestAnimationFrame(look); }; look(); })" % plot)
        check(len(tip) > 5, name, "no tooltip in " + plot)


def without_scripts(browser, url):
    browser.tab("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(url, DESK, False)
    browser.tab("Emulation.setScriptExecutionDisabled", value=False)
    text = browser.value("document.body.innerText")
    check("Where a token goes (decode)" in text, "without scripts", "the text report is not shown")


if __name__ == "__main__":
    sys.exit(main())
