#!/usr/bin/env python3
"""Owns: the question what looking ahead is worth in a running model: none, --prefetch, --predict-prefetch, --route-ahead.

For each size of the cache (a share of all experts) the arms run in turns, forwards and backwards, so that drift meets all
of them alike; medians with spread, ratios against none, and the drift of none. Waiting, bytes and what became of early
reads are those of decode, by the run record. All lossless arms must write the same text, and route-ahead its own text in
every run. Early reads of guesses need a drive that `sluice probe` has measured: without, the run says so and the column
"guessed" is 0. Writes Markdown to standard output.
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

ARMS = {
    "none": [],
    "prefetch 1": ["--prefetch", "1"],
    "predict-prefetch, 2 reads": ["--predict-prefetch"],
    "predict-prefetch, retention": ["--predict-prefetch", "--predict-spec-max", "0"],
    "route-ahead 1": ["--route-ahead", "1"],
    "route-ahead 2": ["--route-ahead", "2"],
    "route-ahead 2, predicted weights": ["--route-ahead", "2", "--route-ahead-weights", "predicted"],
}


def environment():
    return {k: v for k, v in os.environ.items()
            if not (k.startswith("SLUICE_") and k != "SLUICE_CACHE_DIR") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}


def expert_bytes(args):
    done = subprocess.run([args.sluice, "inspect", args.model, "--json"], env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["expert_bytes"]


def one(args, arm, megabytes):
    """What one run's decode did, per token."""
    with tempfile.TemporaryDirectory() as work:
        record = os.path.join(work, "record.jsonl")
        command = [args.sluice, "run", "-m", args.model, "-p", args.prompt, "-n", str(args.tokens), "-t", str(args.threads),
                   "--temp", "0", "--ignore-eos", "--no-history", "--record", record,
                   "--cache-mb", f"{megabytes:.3f}", *ARMS[arm]]
        drop_from_page_cache(args.model)
        done = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=1800)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(record, encoding="utf-8") as f:
            rows = [x for x in map(json.loads, f) if x["kind"] == "row" and x["phase"] == 1]
    tokens = sum(r["tokens"] for r in rows)
    if tokens == 0:
        raise SystemExit("the record has no decode")

    def total(*names):
        return sum(r.get(n) or 0 for r in rows for n in names)

    early = total("predicted_bytes") + (total("ahead_bytes") if total("ra_committed") else 0)
    return {"tok/s": tokens / (total("wall_ns") / 1e9),
            "wait": total("wait_read_ns", "wait_join_ns", "wait_late_ns") / 1e6 / tokens,
            "compute": total("dense_ns", "router_ns", "shared_ns", "routed_ns") / 1e6 / tokens,
            "manage": total("manage_ns") / 1e6 / tokens,
            "bytes": total("exact_physical_bytes", "predicted_physical_bytes") / tokens / MIB,
            "guessed": total("predicted_bytes") / tokens / MIB,
            "used": total("predicted_used_bytes") / early if early else None,
            "hits": total("hits") / max(1, total("lookups")),
            "agreed": total("ra_agreed") / total("ra_slots") if total("ra_slots") else None,
            "text": done.stdout}


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
    full = expert_bytes(args) / MIB
    for share in args.shares:
        runs = {arm: [] for arm in args.arms}
        for r in range(args.rounds):
            for arm in args.arms if r % 2 == 0 else args.arms[::-1]:
                runs[arm].append(one(args, arm, full * share / 100))
        lossless = {run["text"] for arm in args.arms if not arm.startswith("route-ahead") for run in runs[arm]}
        if len(lossless) != 1:
            raise SystemExit(f"at {share:g} % not all lossless runs wrote the same text")
        speeds = [run["tok/s"] for run in runs["none"]]
        half = len(speeds) // 2
        drift = statistics.median(speeds[half:]) / statistics.median(speeds[:half]) - 1 if half else 0
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
                  f"| {f'{drift:+.1%}' if arm == 'none' else ''} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
