#!/usr/bin/env python3
"""Owns: the question what predictors, `auto`, lossy dials, overlap and the cache's policy are worth in decode, beside none.

Each cell (a drive, and a size of the cache as a share of all experts) is measured group by group, each by one process of
`inturns`: all arms of a group decode the same given tokens, block after block, forwards and backwards in turn, with one
model and a cache and a context for each. *Of off* is the speed over that of the arm `off`: of each two successive blocks
(one forwards, one backwards) the ratio of times is taken, and shown are the median of these and the interval in which it
lies with 95 % by the sign test, which asks nothing of how times scatter; then the ratio of all times together. `again`
is off once more: its interval says what the cell can tell. Lossless arms must have the same logits, and `again` the same
counts as off.

--drives throttled (which takes root) holds the drive to --throttle MiB/s by a cgroup, which gives bytes in windows of a
tenth of a second: a block should take many of them, so blocks are longer there the less there is to be read. --probe N has each drive probed for
about N seconds first, with a verdict of its own: guesses read nothing early from a drive that was not measured. The arm
`predict-prefetch, trained` needs --trained FILE, which is made where it does not exist, from what the model writes.
Writes Markdown to standard output, and every block to --raw FILE as JSON lines.
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
from common import MIB, Throttle, environment, model_facts, train_gate  # noqa: E402

# None: --trained FILE has to be filled in.
ARMS = {
    "again": "",
    "prefetch 1": "--prefetch 1",
    "predict-prefetch": "--predict-prefetch",
    "predict-prefetch, trained": None,
    "prefetch auto": "--prefetch auto",
    "predict-prefetch auto": "--predict-prefetch auto",
    "route-ahead 1": "--route-ahead 1",
    "route-ahead 2": "--route-ahead 2",
    "drop 0.5": "--drop-cold-experts 0.5",
    "drop 1": "--drop-cold-experts 1",
    "substitute 0.2": "--expert-substitute 0.2",
    "no overlap": "--no-overlap",
    "lru": "--cache-policy lru",
}
GROUPS = {
    "predictors": ["again", "prefetch 1", "predict-prefetch", "predict-prefetch, trained"],
    "dials": ["route-ahead 1", "route-ahead 2", "drop 0.5", "drop 1", "substitute 0.2"],
    "cache": ["lru", "no overlap"],
    "auto": ["again", "prefetch auto", "predict-prefetch auto"],
}
COUNTS = ("lookups", "hits", "bytes", "physical_bytes")


def interval(values, sure=0.95):
    """The narrowest pair of ordered values between which the median lies with at least that chance, and the chance.

    By the sign test: each value is above the median or below it with a chance of one half. With fewer than six values
    there is no such pair for 95 %; it is the least and the greatest then, with a smaller chance.
    """
    ordered, n = sorted(values), len(values)
    below, ways, found = 0, 1, None  # of 2^n: so many have at most k values below the median
    for k in range((n + 1) // 2):
        below += ways
        ways = ways * (n - k) // (k + 1)
        chance = 1 - 2 * below / 2**n
        if found is None or chance >= sure:
            found = (ordered[k], ordered[n - 1 - k], chance)
    return found


def units(rows, arm, column):
    """Sums over two successive blocks of a round each, one forwards and one backwards, in order."""
    sums = {}
    for row in rows:
        if row["arm"] == arm:
            sums.setdefault((row["round"], row["block"] // 2), []).append(row[column])
    return [sum(values) for _, values in sorted(sums.items()) if len(values) == 2]


def compared(rows, arm):
    """Speed of an arm over that of off: median, interval, chance, all together."""
    off, on = units(rows, "off", "wall_ns"), units(rows, arm, "wall_ns")
    if not off or len(off) != len(on):
        raise SystemExit(f"{arm} has {len(on)} pairs of blocks, off has {len(off)}")
    ratios = [a / b for a, b in zip(off, on)]
    return (statistics.median(ratios), *interval(ratios), sum(off) / sum(on))


def same_counts(rows, arm):
    def of(name):
        return [[row[c] for c in COUNTS] for row in sorted(rows, key=lambda r: (r["round"], r["block"])) if row["arm"] == name]

    return of(arm) == of("off")


TITLES = ["drive", "cache", "arm", "ms per token", "of off", "95 %", "all together", "waiting, ms", "processor, ms", "MiB per token",
          "hits", "read early, MiB", "used", "on"]


def table_rows(rows, drive, share, arms):
    out = []
    for arm in ["off", *arms]:
        mine = [row for row in rows if row["arm"] == arm]

        def per_token(column, scale=1e6, of=mine):
            return sum(row[column] for row in of) / sum(row["tokens"] for row in of) / scale

        early = per_token("early_bytes", MIB)
        ratio = ["1.000", "", ""]
        if arm != "off":
            middle, low, high, chance, total = compared(rows, arm)
            sure = "" if chance >= 0.95 else f" ({chance:.0%})"
            ratio = [f"{middle:.3f}", f"{low:.3f}–{high:.3f}{sure}", f"{total:.3f}"]
        used = sum(row["used_bytes"] for row in mine) / max(1, sum(row["early_bytes"] for row in mine))
        out.append("| " + " | ".join([
            drive, f"{share:g} %", arm, f"{statistics.median(row['wall_ns'] / row['tokens'] for row in mine) / 1e6:.2f}", *ratio,
            f"{per_token('wait_ns'):.2f}", f"{per_token('cpu_ns'):.2f}", f"{per_token('bytes', MIB):.2f}",
            f"{sum(row['hits'] for row in mine) / max(1, sum(row['lookups'] for row in mine)):.1%}",
            f"{early:.2f}" if early else "", f"{used:.1%}" if early else "",
            f"{per_token('guess_on', 1):.0%}" if "auto" in arm else ""]) + " |")
    if "again" in arms and not same_counts(rows, "again"):
        out.append(f"\n**{drive}, {share:g} %: off and again have other counts.**\n")
    return out


def block_tokens(args, throttled, share):
    """With twice the cache a token reads about half as much."""
    return max(args.block, round(args.block * share / 25)) if throttled else args.block


def measure(args, arms, block, units_wanted, full, share, drive, env):
    command = [args.inturns, args.model, "--cache-mb", f"{full * share / 100:.3f}", "--threads", str(args.threads),
               "--warm", str(args.warm), "--tokens", str(2 * block * units_wanted), "--block", str(block), "--rounds", str(args.rounds),
               *(["--text", args.text] if args.text else []), "--arm", "off="]
    for arm, options in arms.items():
        command += ["--arm", f"{arm}={options}"]
    done = subprocess.run(command, env=environment(**env), preexec_fn=drive.enter, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default=os.path.join(ROOT, "build", "sluice"))
    p.add_argument("--inturns", default=os.path.join(ROOT, "build", "bench", "inturns", "inturns"))
    p.add_argument("--model", required=True)
    p.add_argument("--text", default=os.path.join(ROOT, "models", "demo", "heldout_general.txt"),
                   help="whose tokens are decoded; empty: numbers in an order that no text has")
    p.add_argument("--shares", type=float, nargs="+", default=[25, 50, 75], help="of all experts, in percent")
    p.add_argument("--drives", nargs="+", default=["free"], choices=["free", "throttled"])
    p.add_argument("--throttle", type=float, default=600, help="MiB/s of the throttled drive")
    p.add_argument("--probe", type=int, default=0, help="seconds for probing each drive first; 0: the verdict that is there")
    p.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    p.add_argument("--trained", help="a file of sluice predict train")
    p.add_argument("--train-tokens", type=int, default=600)
    p.add_argument("--units", type=int, default=12, help="pairs of blocks of each arm and round; 6 are the fewest with an interval of 95 %%")
    p.add_argument("--auto", type=float, default=1.5, help="times as many in the group auto, whose first trial begins after 64 tokens")
    p.add_argument("--less", type=float, default=0.5, help="times as many on the throttled drive")
    p.add_argument("--warm", type=int, default=16, help="tokens before them, after a prompt and with the cache full")
    p.add_argument("--block", type=int, default=4, help="tokens of an arm before the next one's turn; see above for the throttled drive")
    p.add_argument("--rounds", type=int, default=1, help="times that all is made anew, in another order")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--raw", help="a file that every block is added to")
    args = p.parse_args()
    facts = model_facts(args.sluice, args.model)
    full = facts["expert_bytes"] / MIB
    if args.trained:
        train_gate(args.sluice, args.model, args.trained, args.train_tokens, args.threads)
    arms = ARMS | {"predict-prefetch, trained": f"--predict-prefetch --predict-model {args.trained}" if args.trained else None}
    print("| " + " | ".join(TITLES) + " |\n|" + " --- |" * len(TITLES), flush=True)
    for name in args.drives:
        drive_name = name if name == "free" else f"{args.throttle:g} MiB/s"
        with Throttle(args.model, None if name == "free" else int(args.throttle * MIB)) as drive, tempfile.TemporaryDirectory() as verdicts:
            env = {}
            if args.probe:
                env = {"SLUICE_CACHE_DIR": verdicts}
                subprocess.run([args.sluice, "probe", args.model, "--seconds", str(args.probe)], env=environment(**env),
                               preexec_fn=drive.enter, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            for share in args.shares:
                for group in args.groups:
                    mine = {arm: arms[arm] for arm in GROUPS[group] if arms[arm] is not None}
                    times = (args.auto if group == "auto" else 1) * (1 if name == "free" else args.less)
                    rows = measure(args, mine, block_tokens(args, name != "free", share), max(1, round(args.units * times)), full,
                                   share, drive, env)
                    print("\n".join(table_rows(rows, drive_name, share, mine)), flush=True)
                    if args.raw:
                        with open(args.raw, "a", encoding="utf-8") as raw:
                            for row in rows:
                                raw.write(json.dumps({"drive": drive_name, "share": share, "group": group} | row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
