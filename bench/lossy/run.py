#!/usr/bin/env python3
"""Owns: the question what lossy options save when generating: speed, bytes and standing still, beside none.

One model, caches of several parts of all experts, direct I/O; arms run in turns, and backwards in every other round. Each
run is one `sluice run --record` from a cold cache; the first tokens do not count. Medians with spread; drift is the first
half of the rounds against the second. What is saved is half of the answer: what it costs is `sluice quality`'s (docs/
lossy.md), which this prints for the same options where --text is given, once and without claims about speed. Writes
Markdown to standard output.
"""
import argparse
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, drift, environment, expert_bytes, recorded_run, summary, total  # noqa: E402

NONE = "none"
ARMS = [NONE, "--drop-cold-experts 0.5", "--drop-cold-experts 1", "--expert-substitute 0.1", "--expert-substitute 0.3",
        "--drop-cold-experts 0.5 --expert-substitute 0.1"]
PROMPT = "In the beginning the world was without form, and nobody knew what would come of it. Then"


def one(args, arm, cache_bytes):
    """(tok/s, share of time waiting, MiB per token, share dropped, share substituted) of one run's later tokens."""
    extra = [] if arm == NONE else [*args.deterministic, *arm.split()]
    rows, _ = recorded_run(args.sluice, args.model, "--cache-mb", f"{cache_bytes / MIB:.3f}", "-t", args.threads, "-c", 1024, "-n",
                           args.skip + args.tokens + 1, "-p", PROMPT, *extra)
    rows = rows[args.skip:]
    routed = max(1, total(rows, "routed"))
    wall = total(rows, "wall_ns")
    return (len(rows) * 1e9 / wall, total(rows, "wait_read_ns", "wait_join_ns", "wait_late_ns") / wall,
            total(rows, "exact_bytes") / MIB / len(rows), total(rows, "dropped") / routed, total(rows, "substituted") / routed)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--cache", type=int, nargs="*", default=[25, 50, 75], help="percent of all experts")
    p.add_argument("--arms", nargs="*", default=ARMS[1:], help="sets of lossy options, each one argument")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--tokens", type=int, default=96, help="that count, of each run")
    p.add_argument("--skip", type=int, default=16, help="tokens before them")
    p.add_argument("--deterministic", action="store_const", const=["--deterministic"], default=[])
    p.add_argument("--text", help="held out, for what the options cost")
    args = p.parse_args()
    experts = expert_bytes(args.sluice, args.model)
    arms = [NONE, *args.arms]
    for percent in args.cache:
        cache = experts * percent // 100
        found = {arm: [] for arm in arms}
        for r in range(args.rounds):
            for arm in (arms if r % 2 == 0 else arms[::-1]):
                found[arm].append(one(args, arm, cache))
        base = statistics.median(f[0] for f in found[NONE])
        print(f"\n| cache {percent} % | tok/s | of none | waiting | MiB/token | dropped | substituted | drift |\n"
              "| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        for arm in arms:
            speeds = [f[0] for f in found[arm]]
            text, middle = summary(speeds)
            rest = [statistics.median(f[i] for f in found[arm]) for i in range(1, 5)]
            print(f"| {arm} | {text} | {middle / base:.3f} | {rest[0]:.1%} | {rest[1]:.2f} | {rest[2]:.1%} | {rest[3]:.1%} | {drift(speeds):+.1%} |",
                  flush=True)
        if args.text:
            command = [args.sluice, "quality", "-m", args.model, "--file", args.text, "--cache-mb", f"{cache / MIB:.3f}", "-t",
                       str(args.threads)] + [x for arm in args.arms for x in ("--with", arm)]
            done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                  check=True)
            print(f"\n```\n{done.stdout}```", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
