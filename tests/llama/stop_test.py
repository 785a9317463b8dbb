#!/usr/bin/env python3
"""Owns: Ctrl-C while a read hangs that never comes: `sluice run` and `sluice serve` end all the same, and say what they did.

Keeps: nothing is timed; a program that does not end is a failure after a minute."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

PROMPT = "In the beginning God created the heaven and the earth"


class Program:
    """A program whose standard error can be waited for, line by line."""

    def __init__(self, command, read, args):
        env = dict(os.environ, LD_PRELOAD=args.read_faults, STUCK_READ=f"{read}:{args.model}")
        env.pop("GGML_BACKEND_PATH", None)
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE)
        self.said = ""
        self.timer = threading.Timer(60, self.process.kill)
        self.timer.start()

    def wait_for(self, words):
        while words not in self.said:
            line = self.process.stderr.readline().decode(errors="replace")
            assert line, f"it ended without saying {words!r}:\n{self.said[-3000:]}"
            self.said += line

    def end(self, how=None):
        """Its exit code, after a signal if one is named."""
        if how is not None:
            self.process.send_signal(how)
        self.said += self.process.stderr.read().decode(errors="replace")
        code = self.process.wait()
        assert code != -signal.SIGKILL or not self.timer.finished.is_set(), f"it did not end:\n{self.said[-3000:]}"
        self.timer.cancel()
        return code


def run_command(args):
    return [args.sluice, "run", "-m", args.model, "-p", PROMPT, "-n", "24", "--temp", "0", "-c", "256", "-t", "1",
            "--cache-mb", args.cache_mb, "--io-engine", "pread", "--io-threads", "2"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stop_run(args, read, how):
    program = Program(run_command(args), read, args)
    program.wait_for("stuck")
    code = program.end(how)
    assert code == 130, f"read {read}: ended with {code}:\n{program.said[-3000:]}"
    assert "stopped:  interrupted" in program.said, program.said[-3000:]
    assert "error" not in program.said.lower(), program.said[-3000:]


def stop_serve(args, read, how):
    port = free_port()
    program = Program([args.sluice, "serve", "-m", args.model, "-c", "256", "-np", "1", "-t", "1", "--no-warmup", "--port",
                       str(port), "--cache-mb", args.cache_mb, "--io-engine", "pread", "--io-threads", "2"], read, args)
    program.wait_for("listening on")
    failed = []

    def ask():
        body = json.dumps({"prompt": PROMPT, "n_predict": 64, "temperature": 0, "ignore_eos": True}).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/completion", data=body), timeout=60).read()
        except Exception as e:
            failed.append(e)

    client = threading.Thread(target=ask)
    client.start()
    program.wait_for("stuck")
    code = program.end(how)
    client.join()
    assert code == 0, f"read {read}: the server ended with {code}:\n{program.said[-3000:]}"
    ours = "the program was told to end: what it was computing is given up"
    assert program.said.count(ours) == 1, f"read {read}: {program.said[-3000:]}"
    assert "Compute error" not in program.said[:program.said.index(ours)], program.said[-3000:]
    assert failed, "the client got an answer although its reads never came"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--read-faults", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cache-mb", required=True, help="small enough that experts are read all the time")
    args = parser.parse_args()
    try:
        counted = Program(run_command(args), 10**9, args)
        assert counted.end() == 0, counted.said[-3000:]
        reads = int(re.search(r"^reads: (\d+)$", counted.said, re.M).group(1))
        for part in (0.3, 0.6, 0.95):
            for how in (signal.SIGINT, signal.SIGTERM):
                stop_run(args, int(reads * part), how)
        print("sluice run ends while a read hangs")
        for how in (signal.SIGINT, signal.SIGTERM):
            stop_serve(args, int(reads * 0.5), how)
        print("sluice serve ends while a read hangs")
    except AssertionError as e:
        print(f"FAILED: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
