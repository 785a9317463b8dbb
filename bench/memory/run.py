#!/usr/bin/env python3
"""Owns: two questions about the memory governor.

  auto   Is the size that it chooses as good as the best fixed one? Decode of `sluice run` with no number and with several
         fixed caches, interleaved; medians, spread, drift of the control (auto itself, first half against second).
  squeeze  Does it step down when another process takes memory? One run in a memory cgroup with no swap; after some tokens
         a second process in the same cgroup takes memory in steps and keeps it. Printed: resident memory and major faults
         of the run over time, and how it ended. Needs root.

Run it on an idle machine. Writes Markdown to standard output.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20


def run(args, options, group=None, wait=True):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    record = tempfile.NamedTemporaryFile(suffix=".jsonl", delete=False).name
    command = [args.sluice, "run", "-m", args.model, "-p", "In the beginning", "-n", str(args.tokens), "--temp", "0",
               "--ignore-eos", "-c", "4096", "-t", str(args.threads), "--record", record, *options]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env=environment, preexec_fn=(lambda: enter(group)) if group else None)
    if not wait:
        return child, record
    err = child.stderr.read().decode(errors="replace")
    code = child.wait()
    if code != 0:
        sys.exit(f"{' '.join(options)} ended with {code}:\n{err[-2000:]}")
    return decode_speed(record), err


def decode_speed(record):
    totals = {}
    with open(record, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if row["kind"] == "summary" and row["phase"] == "decode":
                totals = row["totals"]
    os.unlink(record)
    return totals["tokens"] / totals["wall_ns"] * 1e9 if totals else 0.0


def auto(args):
    full = int(json.loads(subprocess.run([args.sluice, "inspect", args.model, "--json"], check=True,
                                         capture_output=True).stdout)["full_cache_bytes"])
    arms = {"auto": []} | {f"{part:.0%} ({full * part / MIB:.0f} MiB)": ["--cache-mb", f"{full * part / MIB:.3f}"]
                           for part in args.parts}
    speeds = {name: [] for name in arms}
    order = list(arms)
    for _ in range(2):  # memory that nobody has touched for a while can be slow: two runs that do not count
        print(f"not counted: {run(args, [])[0]:.2f} tok/s", file=sys.stderr, flush=True)
    for i in range(args.rounds):
        for name in order if i % 2 == 0 else reversed(order):
            speeds[name].append(run(args, arms[name])[0])
            print(f"round {i + 1}, {name}: {speeds[name][-1]:.2f} tok/s", file=sys.stderr, flush=True)
    best = max(statistics.median(v) for name, v in speeds.items() if name != "auto")
    print("| cache | tok/s, median | from | to | of the best fixed one |\n| --- | --- | --- | --- | --- |")
    for name, v in speeds.items():
        print(f"| {name} | {statistics.median(v):.2f} | {min(v):.2f} | {max(v):.2f} | {statistics.median(v) / best:.3f} |")
    half = len(speeds["auto"]) // 2
    if half:
        drift = statistics.median(speeds["auto"][half:]) / statistics.median(speeds["auto"][:half])
        print(f"\nDrift of auto, second half to first: {drift:.3f}. Auto to the best fixed one: "
              f"{statistics.median(speeds['auto']) / best:.3f} (must be 0.95 at least)")


def group_path():
    v1 = os.path.isdir("/sys/fs/cgroup/memory")
    return f"/sys/fs/cgroup/{'memory/' if v1 else ''}sluice-bench-{os.getpid()}", v1


def enter(path):
    with open(f"{path}/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))


HOG = """
import sys, time
chunks = []
for _ in range(int(sys.argv[1])):
    chunks.append(bytearray(b"x") * (int(sys.argv[2]) << 20))
    time.sleep(float(sys.argv[3]))
time.sleep(3600)
"""


def sample(pid):
    with open(f"/proc/{pid}/stat") as f:
        faults = int(f.read().rsplit(")", 1)[1].split()[9])
    with open(f"/proc/{pid}/status") as f:
        text = f.read()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024, faults


def squeeze(args):
    path, v1 = group_path()
    os.mkdir(path)
    hog = None
    try:
        with open(f"{path}/memory.{'limit_in_bytes' if v1 else 'max'}", "w") as f:
            f.write(str(args.limit_mb * MIB))
        try:
            with open(f"{path}/memory.{'memsw.limit_in_bytes' if v1 else 'swap.max'}", "w") as f:
                f.write(str(args.limit_mb * MIB if v1 else 0))
        except OSError:
            pass
        child, record = run(args, ["-v"] if args.verbose else [], group=path, wait=False)
        print(f"cgroup of {args.limit_mb} MiB; the other process takes {args.take_mb} MiB in {args.steps} steps\n")
        print("| s | resident MiB | major faults | other process |\n| --- | --- | --- | --- |")
        start = time.time()
        try:
            while child.poll() is None:
                elapsed = time.time() - start
                if hog is None and elapsed > args.after:
                    hog = subprocess.Popen([sys.executable, "-c", HOG, str(args.steps), str(args.take_mb // args.steps), "0.5"],
                                           preexec_fn=lambda: enter(path))
                rss, faults = sample(child.pid)
                print(f"| {elapsed:.1f} | {rss:.0f} | {faults} | {sample(hog.pid)[0] if hog else 0:.0f} |")
                time.sleep(args.every)
        except (AttributeError, FileNotFoundError, ProcessLookupError):
            pass
        code = child.wait()
        err = child.stderr.read().decode(errors="replace")
        with open(f"{path}/memory.{'oom_control' if v1 else 'events'}") as f:
            kills = re.search(r"oom_kill (\d+)", f.read()).group(1)
        print(f"\nended with {code}, killed for memory in the group: {kills}; {decode_speed(record):.2f} tok/s\n")
        print("\n".join("    " + line for line in err.splitlines() if "memory:" in line or "expert cache" in line))
    finally:
        if hog is not None:
            hog.kill()
            hog.wait()
        for _ in range(50):
            try:
                os.rmdir(path)
                break
            except OSError:
                time.sleep(0.1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("question", choices=["auto", "squeeze"])
    p.add_argument("--sluice", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--parts", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0], help="fixed caches, of all experts")
    p.add_argument("--limit-mb", type=int, default=1600)
    p.add_argument("--take-mb", type=int, default=800)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--after", type=float, default=5)
    p.add_argument("--every", type=float, default=0.5)
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    auto(args) if args.question == "auto" else squeeze(args)


if __name__ == "__main__":
    main()
