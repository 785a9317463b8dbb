#!/usr/bin/env python3
"""Owns: the question what lossy options save when generating: speed, bytes and standing still, beside none.

One model, caches of several parts of all experts, direct I/O; arms run in turns, and backwards in every other round. Each
run is one `sluice run --record` from a cold cache; the first tokens do not count. Medians with spread; drift is the first
half of the rounds against the second. What is saved is half of the answer: what it costs is `sluice quality`'s (docs/
lossy.md), which this prints for the same options where --text is given, once and without claims about speed. Writes
Markdown to standard output.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, drop_from_page_cache, summary  # noqa: E402

NONE = "none"
ARMS = [NONE, "--drop-cold-experts 0.5", "--drop-cold-experts 1", "--expert-substitute 0.1", "--expert-substitute 0.3",
        "--drop-cold-experts 0.5 --expert-substitute 0.1"]
PROMPT = "In the beginning the world was without form, and nobody knew what would come of it. Then"


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}


def one(args, arm, cache_bytes):
    """(tok/s, share of time waiting, MiB per token, share dropped, share substituted) of one run's later tokens."""
    extra = [] if arm == NONE else arm.split()
    with tempfile.TemporaryDirectory() as work:
        record = os.path.join(work, "record.jsonl")
        command = [args.sluice, "run", "--no-history", "--record", record, "--cache-mb", f"{cache_bytes / MIB:.3f}", "-m", args.model,
                   "-t", str(args.threads), "-c", "1024", "--temp", "0", "--ignore-eos", "-n", str(args.skip + args.tokens + 1), "-p",
                   PROMPT, *args.deterministic, *extra]
        if arm == NONE:
            command = [c for c in command if c != "--deterministic"]
        drop_from_page_cache(args.model)
        done = subprocess.run(command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=900)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(record, encoding="utf-8") as f:
            rows = [r for r in map(json.loads, f) if r["kind"] == "row" and r["phase"] == 1][args.skip:]

    def total(*names):
        return sum(r[n] or 0 for r in rows for n in names)

    routed = max(1, total("routed"))
    wall = total("wall_ns")
    return (len(rows) * 1e9 / wall, total("wait_read_ns", "wait_join_ns", "wait_late_ns") / wall, total("exact_bytes") / MIB / len(rows),
            total("dropped") / routed, total("substituted") / routed)


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
    facts = subprocess.run([args.sluice, "inspect", "--json", args.model], capture_output=True, text=True, check=True).stdout
    expert_bytes = json.loads(facts)["expert_bytes"]
    arms = [NONE, *args.arms]
    for percent in args.cache:
        cache = expert_bytes * percent // 100
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
            half = len(speeds) // 2
            drift = statistics.median(speeds[half:]) / statistics.median(speeds[:half]) - 1 if half else 0
            rest = [statistics.median(f[i] for f in found[arm]) for i in range(1, 5)]
            print(f"| {arm} | {text} | {middle / base:.3f} | {rest[0]:.1%} | {rest[1]:.2f} | {rest[2]:.1%} | {rest[3]:.1%} | {drift:+.1%} |",
                  flush=True)
        if args.text:
            command = [args.sluice, "quality", "-m", args.model, "--file", args.text, "--cache-mb", f"{cache / MIB:.3f}", "-t",
                       str(args.threads)] + [x for arm in args.arms for x in ("--with", arm)]
            done = subprocess.run(command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                  check=True)
            print(f"\n```\n{done.stdout}```", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
