#!/usr/bin/env python3
"""Owns: the table of stock llama.cpp and Sluice with every expert in its cache, beside each other in one process.

Each row is a model, a number of threads and a phase. The ratio is Sluice's speed over stock's, so above 1 is faster: the
median over pairs of blocks (one forwards, one backwards in turn), and between which values the median lies with 95 % by
the sign test. By the clock, which wants an idle machine, and by the processor's seconds, which others spoil less. With
several threads the processor's seconds contain waiting for each other. Writes Markdown to standard output.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inturns"))
from run import interval  # noqa: E402


def units(rows, arm, column):
    """Per token, of two successive blocks together: each arm is first in one of them."""
    of = sorted((r["block"], r[column] / r["tokens"]) for r in rows if r["arm"] == arm)
    values = [v for _, v in of]
    return [sum(pair) / 2 for pair in zip(values[::2], values[1::2])]


def ratio(stock, ours):
    ratios = [a / b for a, b in zip(stock, ours)]
    low, high, chance = interval(ratios)
    sure = "" if chance >= 0.95 else f", {chance:.0%}"
    return f"{statistics.median(ratios):.3f} ({low:.3f}–{high:.3f}{sure})"


def row(model, phase, threads, rows):
    if len({r["block"] for r in rows}) < 2:
        raise SystemExit(f"{model}, {phase}: two blocks at least are needed")
    wall, cpu = ([units(rows, arm, c) for arm in ("stock", "sluice")] for c in ("wall_ns", "cpu_ns"))
    speeds = [f"{1e9 / statistics.median(w):.2f}" for w in wall]
    return f"| {model}, {phase} | {threads} | {speeds[0]} | {speeds[1]} | {ratio(*wall)} | {ratio(*cpu)} |"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--beside", required=True, help="the program, build/bench/resident/beside")
    p.add_argument("--models", nargs="+", required=True)
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--flags", default="", help="more flags of the program, as one word")
    p.add_argument("--raw", help="keeps each block, as JSON lines")
    args = p.parse_args()
    raw = open(args.raw, "w") if args.raw else None
    print("| everything resident | threads | stock, tok/s | Sluice, tok/s | ratio (95 %) | of processor's seconds (95 %) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in args.models:
        for threads in args.threads:
            done = subprocess.run([args.beside, model, "--threads", str(threads), *args.flags.split()], stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise SystemExit(done.returncode)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            for r in rows:
                if raw:
                    raw.write(json.dumps({"model": os.path.basename(model), "threads": threads} | r) + "\n")
            for phase in ("decode", "prefill"):
                print(row(os.path.basename(model), phase, threads, [r for r in rows if r["phase"] == phase]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
