#!/usr/bin/env python3
"""Owns: the question what looking ahead and the lossy dials are worth in a running model, beside none.

For each drive (as it is, and held to --throttle MiB/s by a cgroup, which takes root) and each size of the cache (a share of
all experts) the arms run in turns, forwards and backwards, so that drift meets all of them alike; medians with spread,
ratios against none, and each arm's drift. All columns are of decode, by the run record; `--skip` tokens at its beginning
do not count. All lossless arms must write the same text, and route-ahead its own text in every run.

Early reads of guesses need a drive that `sluice probe` has measured, as it is here: --probe N has each drive probed for
about N seconds first, with a verdict of its own. The trained arm needs --trained FILE, which is made where it does not
exist, from what the model writes. An arm with `auto` begins its first trial after 64 tokens: with fewer it is none.

Columns: *stall* is waiting for reads, *joined* the part of it for reads that had begun before the layer asked; *mgmt*
managing, of which route-ahead's own part is *early, ms* (asking for early reads) and *per layer* (ranking, asking and
checking, per routing that was committed); *flash* is what the drive gave while it read. Writes Markdown to standard output.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, Throttle, drift, environment, model_facts, recorded_run, summary, total, train_gate  # noqa: E402

# None: --trained FILE and half of the model's experts have to be filled in.
ARMS = {
    "none": [],
    "prefetch 1": ["--prefetch", "1"],
    "prefetch auto": ["--prefetch", "auto"],
    "predict-prefetch": ["--predict-prefetch"],
    "predict-prefetch, trained": None,
    "predict-prefetch auto": ["--predict-prefetch", "auto"],
    "predict-prefetch, retention": ["--predict-prefetch", "--predict-spec-max", "0"],
    "route-ahead 1": ["--route-ahead", "1"],
    "route-ahead 2": ["--route-ahead", "2"],
    "route-ahead 2, full": ["--route-ahead", "2", "--route-ahead-router", "full"],
    "route-ahead 2, predicted weights": ["--route-ahead", "2", "--route-ahead-weights", "predicted"],
    "drop 0.5": ["--drop-cold-experts", "0.5"],
    "drop 1": ["--drop-cold-experts", "1"],
    "route-ahead 2, drop 0.5": ["--route-ahead", "2", "--drop-cold-experts", "0.5"],
    "substitute 0.2": ["--expert-substitute", "0.2"],
    "n-expert-used, half": None,
}
# What changes answers: by what is in memory, or by itself.
BY_MEMORY = ("drop", "substitute")
LOSSY = ("route-ahead", "drop", "substitute", "n-expert-used")


def asks_memory(arm):
    return any(word in arm for word in BY_MEMORY)


def is_lossless(arm):
    return not any(word in arm for word in LOSSY)


def one(args, options, megabytes, drive, env):
    """What one run's decode did, per token."""
    rows, text = recorded_run(args.sluice, args.model, "-p", args.prompt, "-n", args.skip + args.tokens + 1, "-t", args.threads,
                              "--cache-mb", f"{megabytes:.3f}", *options, env=env, enter=drive.enter)
    rows = rows[args.skip:]

    def sums(*columns):
        return total(rows, *columns)

    tokens = sums("tokens")
    committed = sums("ra_committed")
    early = sums("predicted_bytes") + (sums("ahead_bytes") if committed else 0)
    physical = sums("exact_physical_bytes", "predicted_physical_bytes")
    routed = sums("routed")
    return {"tok/s": tokens / (sums("wall_ns") / 1e9),
            "compute": sums("dense_ns", "router_ns", "shared_ns", "routed_ns") / 1e6 / tokens,
            "stall": sums("wait_read_ns", "wait_join_ns", "wait_late_ns") / 1e6 / tokens,
            "joined": sums("wait_join_ns", "wait_late_ns") / 1e6 / tokens,
            "mgmt": sums("manage_ns") / 1e6 / tokens,
            "issue": sums("ra_issue_ns") / 1e6 / tokens if committed else None,
            "layer": sums("ra_rank_ns", "ra_issue_ns", "ra_watch_ns") / 1e3 / committed if committed else None,
            "flash": physical / MIB / (sums("read_busy_ns") / 1e9) if sums("read_busy_ns") else None,
            "bytes": physical / tokens / MIB,
            "early": early / tokens / MIB if early else None,
            "used": sums("predicted_used_bytes") / early if early else None,
            "hits": sums("hits") / max(1, sums("lookups")),
            "agreed": sums("ra_agreed") / sums("ra_slots") if sums("ra_slots") else None,
            "dropped": sums("dropped") / routed if routed else None,
            "substituted": sums("substituted") / routed if routed else None,
            "text": text}


def number(value, decimals=2):
    return "" if value is None else f"{value:.{decimals}f}"


def percent(value):
    return "" if value is None else f"{value:.1%}"


COLUMNS = [("compute", number), ("stall", number), ("joined", number), ("mgmt", number), ("issue", number), ("layer", number),
           ("flash", lambda v: number(v, 0)), ("bytes", number), ("early", number), ("used", percent), ("hits", percent),
           ("agreed", percent), ("dropped", percent), ("substituted", percent)]
TITLES = ["drive", "cache", "arm", "tok/s", "of none", "compute, ms per token", "stall", "joined", "mgmt", "early, ms",
          "per layer, µs", "flash, MiB/s", "MiB per token", "read early", "used", "hits", "agreed", "dropped", "substituted",
          "drift"]


def cell(args, arms, drive, drive_name, share, full, env):
    runs = {arm: [] for arm in arms}
    for r in range(args.rounds):
        for arm in arms if r % 2 == 0 else reversed(arms):
            runs[arm].append(one(args, arms[arm], full * share / 100, drive, env))
    if len({run["text"] for arm in arms if is_lossless(arm) for run in runs[arm]}) != 1:
        raise SystemExit(f"{drive_name}, {share:g} %: not all lossless runs wrote the same text")
    base = statistics.median(run["tok/s"] for run in runs["none"])
    for arm in arms:
        if not asks_memory(arm) and len({run["text"] for run in runs[arm]}) != 1:
            raise SystemExit(f"{drive_name}, {share:g} %: {arm} wrote different texts")
        speeds = [run["tok/s"] for run in runs[arm]]
        text, m = summary(speeds)

        def median(name):
            values = [run[name] for run in runs[arm] if run[name] is not None]
            return statistics.median(values) if values else None

        print("| " + " | ".join([drive_name, f"{share:g} %", arm, text, f"{m / base:.3f}", *(shown(median(name)) for name, shown in COLUMNS),
                                 f"{drift(speeds):+.1%}"]) + " |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--model", required=True)
    p.add_argument("--shares", type=float, nargs="+", default=[25, 50, 75], help="of all experts, in percent")
    p.add_argument("--drives", nargs="+", default=["free"], choices=["free", "throttled"])
    p.add_argument("--throttle", type=float, default=600, help="MiB/s of the throttled drive")
    p.add_argument("--probe", type=int, default=0, help="seconds for probing each drive first; 0: the verdict that is there")
    p.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    p.add_argument("--without", nargs="+", default=[], choices=list(ARMS), help="arms to leave out")
    p.add_argument("--trained", help="a file of sluice predict train")
    p.add_argument("--train-tokens", type=int, default=600)
    p.add_argument("--prompt", default="In the beginning")
    p.add_argument("--tokens", type=int, default=96, help="that count, of each run")
    p.add_argument("--skip", type=int, default=0, help="tokens before them")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, default=4)
    args = p.parse_args()
    if args.arms[0] != "none" or "none" in args.without:
        raise SystemExit("the first arm is none: the others are compared with it")
    facts = model_facts(args.sluice, args.model)
    filled = {"predict-prefetch, trained": ["--predict-prefetch", "--predict-model", args.trained] if args.trained else None,
              "n-expert-used, half": ["--n-expert-used", str(facts["experts_used"] // 2)] if facts["experts_used"] > 1 else None}
    arms = {arm: ARMS[arm] if ARMS[arm] is not None else filled[arm] for arm in args.arms if arm not in args.without}
    arms = {arm: options for arm, options in arms.items() if options is not None}
    if args.trained:
        train_gate(args.sluice, args.model, args.trained, args.train_tokens, args.threads, args.prompt)
    print("| " + " | ".join(TITLES) + " |\n|" + " --- |" * len(TITLES), flush=True)
    full = facts["expert_bytes"] / MIB
    for name in args.drives:
        drive_name = name if name == "free" else f"{args.throttle:g} MiB/s"
        with Throttle(args.model, None if name == "free" else int(args.throttle * MIB)) as drive, tempfile.TemporaryDirectory() as verdicts:
            env = {}
            if args.probe:
                env = {"SLUICE_CACHE_DIR": verdicts}
                subprocess.run([args.sluice, "probe", args.model, "--seconds", str(args.probe)], env=environment(**env), preexec_fn=drive.enter,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            for share in args.shares:
                cell(args, arms, drive, drive_name, share, full, env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
