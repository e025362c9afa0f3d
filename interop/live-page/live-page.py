#!/usr/bin/env python3
"""The live page of a target under load, as Chromium shows it: $NVLANE is the program, the argument a directory for pictures."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

from browser import Browser

NVLANE, PICTURES = os.environ["NVLANE"], sys.argv[1]
SUBSYSTEM = "nqn.2026-01.io.nvlane:watched"
# A host may call itself anything.
HOSTILE = "nqn.2026-01.io.nvlane:<img src=x onerror=alert(1)><script>window.hacked=1</script>"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(*words):
    return subprocess.Popen([NVLANE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def judge(browser, processes):
    listen, metrics = free_port(), free_port()
    page = f"http://127.0.0.1:{metrics}/"
    target = ["target", "--nqn", SUBSYSTEM, "--listen", f"127.0.0.1:{listen}", "--namespace", "ram:16M",
              "--namespace", "null:1G", "--namespace", "kv:ram:16M", "--metrics", f"127.0.0.1:{metrics}"]
    processes.append(start(*target))
    until = time.monotonic() + 20
    while True:
        try:
            urllib.request.urlopen(page + "readyz")
            break
        except OSError:
            assert time.monotonic() < until, "the target is not ready"
            time.sleep(0.05)
    browser.look(1600, "light")
    browser.open(page)
    browser.wait("typeof samples === 'object' && samples.length >= 1", "a first sample")
    load = start("perf", f"127.0.0.1:{listen}/{SUBSYSTEM}?ns=1", "-t", "60", "-q", "8", "-o", "4096", "-w", "randrw",
                 "-M", "70", "--hostnqn", HOSTILE)
    processes.append(load)
    text = "document.getElementById('%s').innerText"
    # Figures of the load.
    browser.wait(text % "t-commands" + ".match(/^[\\d.]+ [kM]\\/s$/)", "thousands of commands per second")
    browser.wait("samples.length >= 5", "five samples")
    shown = {name: browser.evaluate(text % name) for name in
             ["state", "t-commands", "t-data", "t-latency", "t-batch", "t-hosts", "t-busy", "t-failed"]}
    assert shown["state"] == "live" and shown["t-hosts"] == "1" and shown["t-failed"] == "0/s", shown
    assert shown["t-data"].endswith("iB/s") and shown["t-latency"].split()[1] in ["ns", "µs", "ms"], shown
    assert 1 <= float(shown["t-batch"]) <= 8.5, shown
    # The rates are those of the target: its counters, between two of our own looks.
    def reads():
        live = json.load(urllib.request.urlopen(page + "live.json"))
        return live["age_ns"] / 1e9, live["work"]["read_count"] + live["work"]["write_count"]
    (before, first), rates = reads(), []
    for _ in range(4):
        time.sleep(1)
        rates.append(browser.evaluate("(s => s.read + s.write)(samples[samples.length - 1])"))
    after, last = reads()
    mean, shown_mean = (last - first) / (after - before), sum(rates) / len(rates)
    assert 0.4 < shown_mean / mean < 2.5, f"{rates}, and {mean} by the counters"
    # Tables: the busiest namespace first; a click sorts by another column, and says so.
    first_row = "[...document.getElementById('%s').tBodies[0].rows[0].cells].map(cell => cell.textContent)"
    row = browser.evaluate(first_row % "namespaces")
    assert row[0] == "1" and row[2] == "ram" and row[-1] == "ok" and row[8].split()[1] in ["ns", "µs", "ms"], row
    assert browser.evaluate("document.getElementById('namespaces').tBodies[0].rows.length") == 3
    browser.evaluate("document.querySelector('#namespaces thead th button').click()")
    sort = "document.querySelector('#namespaces thead th').getAttribute('aria-sort')"
    assert browser.evaluate(sort) == "descending"
    assert browser.evaluate(first_row % "namespaces")[0] == "3"
    # The name of the host is text, in the table and among the events.
    cell = "document.querySelector('#hosts tbody td')"
    assert browser.evaluate(cell + ".title") == HOSTILE and browser.evaluate(cell + ".children.length") == 0
    events = browser.evaluate(text % "events")
    assert f"host {HOSTILE} connected" in events, events
    assert browser.evaluate("document.images.length") == 0 and browser.evaluate("window.hacked") is None
    # The heat map has colors, and another phase another drawing.
    colors = "(c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)" \
             "(document.getElementById('heat'))"
    assert browser.evaluate(colors) > 20, browser.evaluate(colors)
    label = "document.getElementById('heat').getAttribute('aria-label')"
    browser.evaluate("document.querySelector('input[value=send]').click()")
    browser.wait(label + ".includes('phase send: p50 ')", "the phase that was chosen")
    browser.evaluate("document.querySelector('input[value=storage]').click()")
    # Batches by size: of eight commands in flight.
    bars = browser.evaluate("[...document.querySelectorAll('#batch tr')].map(row => [row.cells[0].textContent, row.cells[2].textContent])")
    assert len(bars) == 10 and any(part != "0 %" for name, part in bars[:4]), bars
    # At each width: nothing is wider than the page, and news move nothing.
    for width in [400, 900, 1600]:
        for scheme in ["light", "dark"]:
            browser.look(width, scheme)
            time.sleep(0.3)
            height = browser.evaluate("document.documentElement.scrollHeight")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, f"{width}: wider than the page"
            browser.look(width, scheme, height)
            places = "[...document.querySelectorAll('section, .tiles div, h2')].map(e => e.getBoundingClientRect()).map(r => [r.x, r.y, r.width, r.height].map(Math.round).join())"
            before = browser.evaluate(places)
            count = browser.evaluate("samples.length")
            browser.wait(f"samples.length > {count}", "news")
            assert browser.evaluate(places) == before, f"{width}: something moved"
            browser.picture(os.path.join(PICTURES, f"{width}-{scheme}.png"))
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = browser.evaluate(ground)
    browser.look(1600, "light")
    assert browser.evaluate(ground) != dark
    # The history survives a reload of the page.
    count = browser.evaluate("samples.length")
    browser.call("Page.reload")
    browser.wait(f"typeof samples === 'object' && samples.length > {count // 2}", "the history after a reload")
    # The host leaves; the target is killed, and another one takes its place.
    load.kill()
    load.wait()
    browser.wait(text % "events" + ".includes(' left')", "an event")
    processes[0].kill()
    processes[0].wait()
    browser.wait(text % "state" + " === 'no answer'", "that nothing answers")
    processes.append(start(*target))
    browser.wait(text % "state" + " === 'live'", "the target again")
    browser.wait(text % "events" + ".includes('target restarted')", "an event of the restart")
    foreign = [address for address in browser.requests() if not address.startswith(page)]
    assert not foreign, foreign
    # A target that is gone; and on a machine with other work a reactor may have no time to answer (503), which the page shows.
    expected = ["ERR_CONNECTION", "status of 503"]
    complaints = [line for line in browser.complaints() if not any(part in line for part in expected)]
    assert not complaints, complaints


def main():
    processes, browser = [], Browser(os.environ.get("CHROMIUM", "chromium"))
    try:
        judge(browser, processes)
    except AssertionError:
        browser.picture(os.path.join(PICTURES, "failed.png"))
        raise
    finally:
        browser.close()
        for process in processes:
            process.kill()
            process.wait()


main()
