#!/usr/bin/env python3
"""Owns: the question what computing while reading is worth in decode, at which width of waves, beside stock llama.cpp.

Arms: no overlap, overlap (--wave auto) and the waves that are asked for, for each share of the experts that the cache
holds; with --cgroup all of them in a memory cgroup (which takes root) that has room for the cache, the dense weights
and --beside MiB, and with --stock NAME also that llama-bench by mmap in the same cgroup. They run in turns, forwards
and backwards, after one round that does not count; medians with spread.

*Hidden* is the part of the reads' time in which nobody waited for them; *over roofline* is the token's time over the
larger of all but waiting and the drive's busy time. Columns are of decode, by the run record, without the first --skip
tokens. All arms but stock must write the same text and read the same bytes (a fiftieth aside). Writes Markdown to
standard output.
"""
import argparse
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, Cgroup, drift, llama_bench, model_facts, recorded_run, summary, total  # noqa: E402


def one(args, options, cache, limit):
    with Cgroup(limit) as group:
        rows, text = recorded_run(args.sluice, args.model, "-p", args.prompt, "-n", args.skip + args.tokens + 1,
                                  "-t", args.threads, "-c", 512, "--cache-mb", f"{cache:.3f}", *options, enter=group.enter)
    rows = rows[args.skip:]
    tokens = total(rows, "tokens")
    wall, busy = total(rows, "wall_ns"), total(rows, "read_busy_ns")
    waited = total(rows, "wait_read_ns", "wait_join_ns", "wait_late_ns")
    return {"tok/s": tokens / (wall / 1e9), "waited": waited / 1e6 / tokens,
            "managed": total(rows, "manage_ns") / 1e6 / tokens, "bytes": total(rows, "exact_bytes") / tokens / MIB,
            "hidden": 1 - waited / busy if busy else None, "over": wall / max(wall - waited, busy) - 1,
            "drive": total(rows, "exact_physical_bytes") / MIB / (busy / 1e9) if busy else None, "text": text}


def cell(args, arms, share, facts):
    cache = facts["expert_bytes"] * share / 100 / MIB
    limit = int(facts["expert_bytes"] * share / 100) + facts["dense_bytes"] + args.beside * MIB if args.cgroup else None
    runs, stock = {arm: [] for arm in arms}, []
    for r in range(-1, args.rounds):
        for arm in arms if r % 2 == 0 else reversed(arms):
            run = one(args, arms[arm], cache, limit)
            if r >= 0:
                runs[arm].append(run)
        if args.stock and r >= 0:
            stock += llama_bench(args.stock, args.model, args.threads, 0, args.stock_tokens, limit=limit)
    everything = [run for arm in arms for run in runs[arm]]
    if len({run["text"] for run in everything}) != 1:
        raise SystemExit(f"{share:g} %: not all runs wrote the same text")
    least, most = (f(run["bytes"] for run in everything) for f in (min, max))
    if most > 1.02 * least:
        raise SystemExit(f"{share:g} %: runs read between {least:.1f} and {most:.1f} MiB per token")
    base = statistics.median(run["tok/s"] for run in runs["no overlap"])
    for arm in arms:
        def median(name, scale=1.0, decimals=1):
            values = [run[name] for run in runs[arm] if run[name] is not None]
            return f"{scale * statistics.median(values):.{decimals}f}" if values else ""

        text, m = summary([run["tok/s"] for run in runs[arm]])
        print(f"| {share:g} % | {arm} | {text} | {m / base:.3f} | {median('waited')} | {median('managed')} "
              f"| {median('hidden', 100, 0)} % | {median('over', 100, 0)} % | {median('drive', 1, 0)} | {median('bytes')} "
              f"| {drift([run['tok/s'] for run in runs[arm]]):+.0%} |", flush=True)
    if stock:
        text, m = summary(stock)
        print(f"| {share:g} % | stock mmap | {text} | {m / base:.3f} | | | | | | | |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--shares", type=float, nargs="+", default=[10, 30, 50, 75, 100], help="of all experts, in percent")
    p.add_argument("--waves", type=int, nargs="*", default=[2, 4, 64], help="widths beside auto")
    p.add_argument("--cgroup", action="store_true")
    p.add_argument("--beside", type=int, default=256, help="MiB in the cgroup beside the cache and the dense weights")
    p.add_argument("--stock", help="a stock llama-bench")
    p.add_argument("--stock-tokens", type=int, default=12)
    p.add_argument("--prompt", default="The river ran")
    p.add_argument("--tokens", type=int, default=48, help="that count, of each run")
    p.add_argument("--skip", type=int, default=8, help="tokens before them")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=4)
    args = p.parse_args()
    facts = model_facts(args.sluice, args.model)
    arms = {"no overlap": ["--no-overlap"], "overlap": []} | {f"wave {w}": ["--wave", str(w)] for w in args.waves}
    print("| cache | arm | tok/s | of no overlap | waiting, ms per token | managing | hidden | over roofline "
          "| drive, MiB/s | MiB per token | drift |\n|" + " --- |" * 11, flush=True)
    for share in args.shares:
        cell(args, arms, share, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
