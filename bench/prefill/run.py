#!/usr/bin/env python3
"""Owns: the question which way of reading a prompt's experts is the fastest, and whether the choice finds it.

Prompts of several lengths, caches of several parts of all experts, each run in a memory cgroup with direct I/O. Arms:
resident (all experts in memory), micro and macro (each always), auto (the choice). They run in turns, and backwards in
every other round. Medians with spread; bytes and the experts' own bytes (the union that the routers chose) from the run
record; hidden is the part of the reads' time that computing did not stand still for. Writes Markdown to standard output.

The first repetition of each run fills the cache and shows the layers' pace; it does not count.
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
from common import MIB, Cgroup, drop_from_page_cache  # noqa: E402

ARMS = ["resident", "micro", "macro", "auto"]


def one(args, arm, tokens, cache_bytes, limit):
    """Of each counted repetition: tok/s, bytes read, bytes of the union, wait, busy, blocks read ahead, blocks."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}
    mode = "micro" if arm == "resident" else arm
    with tempfile.TemporaryDirectory() as work:
        record = os.path.join(work, "record.jsonl")
        command = [args.sluice, "bench", "--record", record, "--prefill-mode", mode,
                   "--cache-mb", f"{cache_bytes / MIB:.3f}", "-m", args.model, "-t", str(args.threads),
                   "--no-warmup", "-p", str(tokens), "-n", "0", "-r", str(args.repetitions + 1), "-o", "json"]
        drop_from_page_cache(args.model)
        with Cgroup(limit) as group:
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  preexec_fn=group.enter, timeout=600)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        speeds = [s for test in json.loads(done.stdout) for s in test["samples_ts"]]
        with open(record, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
    model = next(x for x in lines if x["kind"] == "model")
    record_bytes = max(model["record_bytes"])
    if len(set(model["record_bytes"])) > 1:
        raise SystemExit("layers of different sizes: the union's bytes would be wrong")
    rows = [x for x in lines if x["kind"] == "row" and x["phase"] == 0]
    # A repetition is `tokens` tokens in one batch or several.
    runs, at = [], len(rows)
    for speed in reversed(speeds):
        mine, seen = [], 0
        while seen < tokens and at > 0:
            at -= 1
            mine.append(rows[at])
            seen += rows[at]["tokens"]

        def total(name):
            return sum(r[name] or 0 for r in mine)

        waited = total("wait_read_ns") + total("wait_join_ns") + total("wait_late_ns")
        runs.append((speed, total("exact_bytes"), total("lookups") * record_bytes, waited, total("read_busy_ns"),
                     total("blocks_macro"), total("blocks_macro") + total("blocks_micro")))
    return runs[::-1][1:]


def row(name, runs, resident):
    speed = [r[0] for r in runs]
    middle = statistics.median(speed)
    half = len(speed) // 2
    drift = statistics.median(speed[half:]) / statistics.median(speed[:half]) - 1 if half else 0

    def median(i):
        return statistics.median(r[i] for r in runs)

    busy = median(4)
    hidden = f"{1 - median(3) / busy:.2f}" if busy > 0 else "—"
    union = median(2)
    ahead = f"{median(5):.0f} of {median(6):.0f}"
    print(f"| {name} | {middle:.2f} ({min(speed):.2f}–{max(speed):.2f}) | {middle / resident:.3f} | {median(1) / MIB:.1f} "
          f"| {union / MIB:.1f} | {median(1) / union:.3f} | {hidden} | {ahead} | {drift:+.1%} |", flush=True)
    return middle


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", type=int, nargs="*", default=[32, 128, 512, 2048])
    p.add_argument("--cache", type=int, nargs="*", default=[30, 50], help="percent of all experts")
    p.add_argument("--arms", nargs="*", default=ARMS, choices=ARMS)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--repetitions", type=int, default=1, help="that count, of each run")
    p.add_argument("--expert-bytes", type=int, help="of the model; asked of sluice inspect where not given")
    p.add_argument("--rest-mb", type=int, default=700, help="memory in the cgroup beside the cache")
    p.add_argument("--no-cgroup", action="store_true")
    args = p.parse_args()
    expert_bytes = args.expert_bytes
    if expert_bytes is None:
        text = subprocess.run([args.sluice, "inspect", "--json", args.model], capture_output=True, text=True, check=True).stdout
        expert_bytes = json.loads(text)["expert_bytes"]
    for tokens in args.tokens:
        print(f"\n| {tokens} tokens | tok/s | of resident | MiB read | MiB of the union | read / union | hidden | layers "
              f"read ahead | drift |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        arms = [("resident", None)] if "resident" in args.arms else []
        arms += [(arm, percent) for percent in args.cache for arm in args.arms if arm != "resident"]
        found = {arm: [] for arm in arms}
        for r in range(args.rounds):
            for arm, percent in (arms if r % 2 == 0 else arms[::-1]):
                cache = expert_bytes * (percent or 110) // 100
                limit = None if args.no_cgroup else cache + args.rest_mb * MIB
                found[arm, percent] += one(args, arm, tokens, cache, limit)
        resident = statistics.median([r[0] for r in found[arms[0]]])
        for arm, percent in arms:
            name = arm if percent is None else f"{arm}, cache {percent} %"
            row(name, found[arm, percent], resident)
    return 0


if __name__ == "__main__":
    sys.exit(main())
