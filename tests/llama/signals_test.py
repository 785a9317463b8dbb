#!/usr/bin/env python3
"""Owns: SIGUSR1 and SIGUSR2 to `sluice run`: one halves what experts hold, the other lifts that, both are said, and the
record and the summary tell what holds. What comes before there is anything to halve is remembered.

Keeps: nothing is timed. The program stands still at the opening of a pipe that has no reader, before it listens."""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

DEADLINE_S = 60


def has(pid, field, number):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def until(what, process):
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def early(args, work, signals, size):
    """What a run says and the rows of its cache, with signals that come before it can do anything about them."""
    pipe = work / "record"
    os.mkfifo(pipe)
    process = subprocess.Popen([args.sluice, "run", "-m", args.model, "-p", "In the beginning", "-n", "4", "--temp", "0",
                                "-c", "64", "-t", "1", size, "3", "--no-history", "--record", pipe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for together in signals:
            for number in together:
                until(lambda: has(process.pid, "SigCgt", number), process)
            process.send_signal(signal.SIGSTOP)
            for number in together:
                process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            # Two of them at once are handled in the order of their numbers, whichever was first.
            until(lambda: not any(has(process.pid, "ShdPnd", number) for number in together), process)
        # A reader lets it go on.
        with open(pipe) as lines:
            caches = [r for r in map(json.loads, lines) if r["kind"] == "cache"]
        said = process.stderr.read().decode(errors="replace")
        assert process.wait() == 0, f"it ended with {process.returncode}:\n{said[-2000:]}"
    finally:
        process.kill()
        process.wait()
    return said, caches


def early_signals_are_remembered(args, work):
    usr1, usr2 = signal.SIGUSR1, signal.SIGUSR2
    for name, signals, part, words in (
            ("none", [], 1, []),
            ("half", [[usr1]], 2, ["going to have half of what they could, as told", "experts go down to 1.5 MiB, as told"]),
            ("quarter", [[usr1], [usr1]], 4, ["experts go down to 768.0 KiB, as told"]),
            ("fixed", [[usr1]], 2, ["experts go down to 1.5 MiB, as told"]),
            ("together", [[usr1, usr2]], 1, ["not going to be halved any more, as told"]),
            ("lifted", [[usr1], [usr2]], 1, ["not going to be halved any more, as told"])):
        place = work / name
        place.mkdir()
        said, caches = early(args, place, signals, "--cache-mb" if name == "fixed" else "--cache-ceil-mb")
        for w in words:
            assert w in said, f"{name}: {w} is not in:\n{said[-2000:]}"
        assert "go down" in said or part == 1, said
        # From the first token on.
        assert len(caches) == 1 and (3 << 19) // part < caches[0]["bytes"] <= (3 << 20) // part, (name, caches)


def handler_never_waits(args, work):
    # The record of a long answer fills a pipe that nobody reads on, so the program stands still while it listens.
    pipe = work / "lines"
    os.mkfifo(pipe)
    process = subprocess.Popen([args.sluice, "run", "-m", args.model, "-p", "In the beginning", "-n", "2000", "--temp",
                                "0", "-c", "2048", "-t", "1", "--cache-mb", "3", "--no-history", "--ignore-eos",
                                "--record", pipe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        reader = os.open(pipe, os.O_RDONLY)
        until(lambda: has(process.pid, "SigCgt", signal.SIGUSR1), process)
        process.send_signal(signal.SIGSTOP)
        ends = []
        for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            if not os.readlink(fd).startswith("pipe:"):
                continue
            info = (fd.parent.parent / "fdinfo" / fd.name).read_text()
            flags = int(next(line.split()[1] for line in info.splitlines() if line.startswith("flags")), 8)
            if flags & os.O_ACCMODE == os.O_WRONLY:
                ends.append(flags)
        assert ends, "it listens, but has no pipe"
        assert all(flags & os.O_NONBLOCK for flags in ends), [oct(flags) for flags in ends]
        os.close(reader)
    finally:
        process.kill()
        process.wait()


def limits_are_told(args, work):
    # The pipe holds some dozen rows, so the program never runs far ahead of what was read here.
    pipe = work / "rows"
    os.mkfifo(pipe)
    process = subprocess.Popen([args.sluice, "run", "-m", args.model, "-p", "In the beginning", "-n", "8000", "--temp", "1",
                                "--seed", "1", "-c", "8192", "-t", "1", "--no-history", "--ignore-eos", "--record", pipe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with open(pipe) as lines:
            records = (json.loads(line) for line in lines)

            def until(wanted):
                for record in records:
                    if wanted(record):
                        return record
                raise AssertionError("it ended before:\n" + process.stderr.read().decode(errors="replace")[-2000:])

            first = until(lambda r: r["kind"] == "cache")
            # As many experts as half of the slots must be there, or there is nothing to give back.
            until(lambda r: (r.get("cache_resident") or 0) > 0.6 * first["slots"])
            process.send_signal(signal.SIGUSR1)
            half = until(lambda r: r["kind"] == "cache")
            assert half["bytes"] < first["bytes"] and half["slots"] < first["slots"], (first, half)
            assert half["after_decode"] > 0, half
            row = until(lambda r: r.get("cache_resident") is not None)
            assert row["cache_bytes"] == half["bytes"] and row["cache_resident"] <= half["slots"], (half, row)
            process.send_signal(signal.SIGUSR2)
            again = until(lambda r: r["kind"] == "cache")
            assert again["bytes"] == first["bytes"], (first, again)
            process.send_signal(signal.SIGUSR1)
            last = until(lambda r: r["kind"] == "cache")
            process.send_signal(signal.SIGINT)
            for _ in records:
                pass
        said = process.stderr.read().decode(errors="replace")
        assert process.wait() == 130, f"it ended with {process.returncode}:\n{said[-2000:]}"
    finally:
        process.kill()
        process.wait()
    for words in (r"memory: experts go down to .*, as told", r"memory: experts may take .* again, as told",
                  rf"cache {last['bytes'] / 2**20:.1f} MiB \(at first {first['bytes'] / 2**20:.1f} MiB\) holds "
                  rf"{last['slots']} of"):
        assert re.search(words, said), f"{words} is not in:\n{said[-2000:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    for test in (early_signals_are_remembered, handler_never_waits, limits_are_told):
        with tempfile.TemporaryDirectory() as work:
            test(args, pathlib.Path(work))
        print(f"ok      {test.__name__}")


if __name__ == "__main__":
    main()
