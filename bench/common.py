"""Owns: what the benchmarks share: interleaved arms, medians with spread, drift of the control, memory cgroups."""
import json
import os
import statistics
import subprocess

MIB = 1 << 20


class Cgroup:
    """A memory cgroup (version 1 or 2) around a child, or nothing where limit is None."""

    def __init__(self, limit):
        self.limit, self.path = limit, None

    def __enter__(self):
        if self.limit is None:
            return self
        v1 = "/sys/fs/cgroup/memory"
        self.path = (v1 if os.path.isdir(v1) else "/sys/fs/cgroup") + f"/sluice-bench-{os.getpid()}"
        os.mkdir(self.path)
        name = "memory.limit_in_bytes" if os.path.isdir(v1) else "memory.max"
        with open(f"{self.path}/{name}", "w") as f:
            f.write(str(self.limit))
        return self

    def enter(self):
        if self.path:
            with open(f"{self.path}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    def __exit__(self, *_):
        if self.path:
            os.rmdir(self.path)


def drop_from_page_cache(path):
    """Whatever earlier runs left of a file in memory would not be charged to the next cgroup."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def summary(values):
    m = statistics.median(values)
    return f"{m:.2f} ({min(values):.2f}–{max(values):.2f})", m


def compare(name, stock, ours, rounds):
    """Interleaved A/B/B/A; returns a table row."""
    a, b = [], []
    for r in range(rounds):
        for arm in ("ab" if r % 2 == 0 else "ba"):
            (a if arm == "a" else b).extend(stock() if arm == "a" else ours())
    (ta, ma), (tb, mb) = summary(a), summary(b)
    half = len(a) // 2
    drift = statistics.median(a[half:]) / statistics.median(a[:half]) - 1 if half else 0
    print(f"| {name} | {ta} | {tb} | {mb / ma:.3f} | {drift:+.1%} |", flush=True)


def llama_bench(binary, model, threads, n_prompt, n_gen, repetitions=1, extra_env=None, limit=None):
    """tok/s of one llama-bench process, one value per repetition."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}
    env.update(extra_env or {})
    command = [binary, "-m", model, "-t", str(threads), "-p", str(n_prompt), "-n", str(n_gen), "-r", str(repetitions),
               "-o", "json"]
    if limit is not None:
        drop_from_page_cache(model)
    with Cgroup(limit) as group:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=group.enter)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return [s for test in json.loads(done.stdout) for s in test["samples_ts"]]
