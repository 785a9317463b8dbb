#!/usr/bin/env python3
"""Owns: SIGUSR1 and SIGUSR2 while `sluice run` has only begun: they do nothing before it listens to them.

Keeps: nothing is timed. The program stands still at the opening of a pipe that has no reader, before it listens."""

import argparse
import os
import pathlib
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


def early_signals(args, work):
    pipe = work / "record"
    os.mkfifo(pipe)
    process = subprocess.Popen([args.sluice, "run", "-m", args.model, "-p", "In the beginning", "-n", "4", "--temp", "0",
                                "-c", "64", "-t", "1", "--cache-mb", "3", "--no-history", "--record", pipe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            until(lambda: has(process.pid, "SigIgn", number), process)
            process.send_signal(number)
        # A reader lets it go on.
        reader = os.open(pipe, os.O_RDONLY)
        while os.read(reader, 1 << 16):
            pass
        os.close(reader)
        said = process.stderr.read().decode(errors="replace")
        assert process.wait() == 0, f"it ended with {process.returncode}:\n{said[-2000:]}"
    finally:
        process.kill()
        process.wait()


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    for test in (early_signals, handler_never_waits):
        with tempfile.TemporaryDirectory() as work:
            test(args, pathlib.Path(work))
        print(f"ok      {test.__name__}")


if __name__ == "__main__":
    main()
