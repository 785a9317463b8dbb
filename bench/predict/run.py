#!/usr/bin/env python3
"""Owns: the question what looking ahead is worth in a running model: none, --prefetch, --predict-prefetch, --route-ahead.

For each size of the cache (a share of all experts) the arms run in turns, forwards and backwards, so that drift meets all
of them alike; medians with spread, ratios against none, and the drift of none. Waiting, bytes and what became of early
reads are those of decode, by the run record. All lossless arms must write the same text, and route-ahead its own text in
every run. Early reads of guesses need a drive that `sluice probe` has measured: without, the run says so and the column
"guessed" is 0. Writes Markdown to standard output.
"""
import argparse
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, drift, expert_bytes, recorded_run, summary, total  # noqa: E402

ARMS = {
    "none": [],
    "prefetch 1": ["--prefetch", "1"],
    "prefetch auto": ["--prefetch", "auto"],
    "predict-prefetch, 2 reads": ["--predict-prefetch"],
    "predict-prefetch auto": ["--predict-prefetch", "auto"],
    "predict-prefetch, retention": ["--predict-prefetch", "--predict-spec-max", "0"],
    "route-ahead 1": ["--route-ahead", "1"],
    "route-ahead 2": ["--route-ahead", "2"],
    "route-ahead 2, predicted weights": ["--route-ahead", "2", "--route-ahead-weights", "predicted"],
}


def one(args, arm, megabytes):
    """What one run's decode did, per token."""
    rows, text = recorded_run(args.sluice, args.model, "-p", args.prompt, "-n", args.tokens, "-t", args.threads, "--cache-mb",
                              f"{megabytes:.3f}", *ARMS[arm])

    def sums(*columns):
        return total(rows, *columns)

    tokens = sums("tokens")
    early = sums("predicted_bytes") + (sums("ahead_bytes") if sums("ra_committed") else 0)
    return {"tok/s": tokens / (sums("wall_ns") / 1e9),
            "wait": sums("wait_read_ns", "wait_join_ns", "wait_late_ns") / 1e6 / tokens,
            "compute": sums("dense_ns", "router_ns", "shared_ns", "routed_ns") / 1e6 / tokens,
            "manage": sums("manage_ns") / 1e6 / tokens,
            "bytes": sums("exact_physical_bytes", "predicted_physical_bytes") / tokens / MIB,
            "guessed": sums("predicted_bytes") / tokens / MIB,
            "used": sums("predicted_used_bytes") / early if early else None,
            "hits": sums("hits") / max(1, sums("lookups")),
            "agreed": sums("ra_agreed") / sums("ra_slots") if sums("ra_slots") else None,
            "text": text}


def percent(value):
    return "-" if value is None else f"{value:.1%}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--shares", type=float, nargs="+", default=[25, 50, 75], help="of all experts, in percent")
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    p.add_argument("--prompt", default="In the beginning")
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=4)
    args = p.parse_args()
    if args.arms[0] != "none":
        raise SystemExit("the first arm is none: the others are compared with it")
    print("| cache | arm | tok/s | of none | waiting, ms per token | compute | managing | MiB per token | guessed | early, used "
          "| hits | agreed | drift of none |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    full = expert_bytes(args.sluice, args.model) / MIB
    for share in args.shares:
        runs = {arm: [] for arm in args.arms}
        for r in range(args.rounds):
            for arm in args.arms if r % 2 == 0 else args.arms[::-1]:
                runs[arm].append(one(args, arm, full * share / 100))
        lossless = {run["text"] for arm in args.arms if not arm.startswith("route-ahead") for run in runs[arm]}
        if len(lossless) != 1:
            raise SystemExit(f"at {share:g} % not all lossless runs wrote the same text")
        speeds = [run["tok/s"] for run in runs["none"]]
        base = statistics.median(speeds)
        for arm in args.arms:
            if len({run["text"] for run in runs[arm]}) != 1:
                raise SystemExit(f"at {share:g} % {arm} wrote different texts")
            text, m = summary([run["tok/s"] for run in runs[arm]])

            def median(name):
                values = [run[name] for run in runs[arm] if run[name] is not None]
                return statistics.median(values) if values else None

            print(f"| {share:g} % | {arm} | {text} | {m / base:.3f} | {median('wait'):.2f} | {median('compute'):.2f} "
                  f"| {median('manage'):.2f} | {median('bytes'):.2f} | {median('guessed'):.2f} | {percent(median('used'))} "
                  f"| {percent(median('hits'))} | {percent(median('agreed'))} "
                  f"| {f'{drift(speeds):+.1%}' if arm == 'none' else ''} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
