#!/usr/bin/env python3
"""Which values of the default cache policy: chosen on all traces but one, reported on that one.

    bench/policy/tune.py --sluice build/sluice qwen.route.csv gemma.route.csv gptoss.route.csv

Runs `sluice replay` for every combination of values below. A combination is refused if it is anywhere more than half a
point below LRU on the traces that it is chosen on; of the others the one that closes most of the gap between LRU and
the optimum wins, in the mean over traces and budgets."""
import argparse, concurrent.futures, csv, io, itertools, subprocess, sys

GRID = {
    "short": [0.5],
    "long": [8, 10, 14, 20, 28],
    "share": [0.1, 0.2, 0.3],
    "phase": [2],
    "prompt": [0.25, 0.5, 1],
    "echo": [0, 0.2, 0.3, 0.4, 0.5],
    "sharp": [5, 8, 12],
}


def rates(sluice, traces, slots, prompt, policies, tune=None):
    command = [sluice, "replay", *traces, "--csv", "--slots", slots, "--prompt", prompt, "--policy", policies]
    if tune:
        command += ["--tune", ",".join(f"{k}={v}" for k, v in tune.items())]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = {}
    for row in csv.DictReader(io.StringIO(out)):
        table[row["trace"], row["policy"], int(row["slots"])] = float(row["hit_rate"])
    return table


def judge(table, trace, policy):
    """Mean part of the gap closed, and the worst difference to LRU, over the budgets."""
    budgets = sorted(s for t, p, s in table if t == trace and p == "best")
    closed, worst = 0, 1
    for s in budgets:
        lru, best, hit = table[trace, "lru", s], table[trace, "best", s], table[trace, policy, s]
        closed += (hit - lru) / (best - lru) if best > lru else 0
        worst = min(worst, hit - lru)
    return closed / len(budgets), worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("traces", nargs="+")
    p.add_argument("--sluice", default="build/sluice")
    p.add_argument("--slots", default="4-32")
    p.add_argument("--choose-slots", default="4,6,8,12,16,24,32", help="budgets that the choice looks at")
    p.add_argument("--prompt", default="guests")
    p.add_argument("--jobs", type=int, default=2, help="combinations at a time")
    a = p.parse_args()
    if len(a.traces) < 2:
        sys.exit("at least two traces: one is held out")

    def attempt(tune):
        table = rates(a.sluice, a.traces, a.choose_slots, a.prompt, "lru,reuse", tune)
        return tune, {t: judge(table, t, "reuse") for t in a.traces}

    grid = [dict(zip(GRID, values)) for values in itertools.product(*GRID.values())]
    # Without an echo its sharpness says nothing.
    grid = [g for g in grid if g["echo"] > 0 or g["sharp"] == GRID["sharp"][0]]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        tried = list(pool.map(attempt, grid))
    print(f"{len(tried)} combinations, prompts as {a.prompt}")
    sum_closed = 0
    for held in a.traces:
        others = [t for t in a.traces if t != held]
        sound = [x for x in tried if all(x[1][t][1] >= -0.005 for t in others)]
        tune, _ = max(sound, key=lambda x: sum(x[1][t][0] for t in others))
        table = rates(a.sluice, [held], a.slots, a.prompt, "lru,reuse", tune)
        closed, worst = judge(table, held, "reuse")
        sum_closed += closed
        least = min(table[k] for k in table if k[1] == "reuse")
        most = max(x[1][held][0] for x in tried)
        print(f"held out {held}: chosen {tune}; there it closes {100 * closed:.1f} % of the gap over slots {a.slots}, "
              f"worst against LRU {100 * worst:+.2f} points, least hit rate {100 * least:.1f} %; the best of all "
              f"combinations for it alone closes {100 * most:.1f} % (over {a.choose_slots})")
    print(f"held out, in the mean: {100 * sum_closed / len(a.traces):.1f} %")


if __name__ == "__main__":
    main()
