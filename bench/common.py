"""Owns: what the benchmarks share: interleaved arms, medians with spread, drift of the control, memory cgroups, runs of
`sluice run` with their record."""
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20


class Cgroup:
    """A memory cgroup (version 1 or 2) around a child, or nothing where limit is None. Inside a limit there is no swap.

    With always=True there is a group also without a limit, for its peak.
    """

    ROOT = "/sys/fs/cgroup"

    def __init__(self, limit, always=False):
        self.limit, self.always, self.path = limit, always, None

    @classmethod
    def version(cls):
        """1 or 2, or None where no cgroups are mounted."""
        if os.path.isdir(cls.ROOT + "/memory"):
            return 1
        return 2 if os.path.exists(cls.ROOT + "/cgroup.controllers") else None

    def __enter__(self):
        if self.limit is None and not self.always:
            return self
        v1 = self.version() == 1
        base = self.ROOT + "/memory" if v1 else self.ROOT
        if not v1:  # without the controller in the parent a group has no memory files
            try:
                self._write(f"{base}/cgroup.subtree_control", "+memory")
            except OSError:
                pass
        for name in os.listdir(base):  # what killed benchmarks have left
            pid = name.removeprefix("sluice-bench-")
            if pid != name and (pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")):
                try:
                    os.rmdir(f"{base}/{name}")
                except OSError:
                    pass
        path = f"{base}/sluice-bench-{os.getpid()}"
        os.mkdir(path)
        self.path = path
        if self.limit is None:
            return self
        try:
            self._write(path + ("/memory.limit_in_bytes" if v1 else "/memory.max"), self.limit)
        except OSError:
            self.__exit__()
            raise
        try:  # a kernel without accounting of swap lacks these files
            self._write(*((path + "/memory.memsw.limit_in_bytes", self.limit) if v1 else (path + "/memory.swap.max", 0)))
        except OSError:
            pass
        return self

    @staticmethod
    def _write(path, value):
        with open(path, "w") as f:
            f.write(str(value))

    def enter(self):
        if self.path:
            self._write(f"{self.path}/cgroup.procs", os.getpid())

    def _number(self, name, key=None):
        try:
            with open(f"{self.path}/{name}") as f:
                text = f.read()
            if key is None:
                return int(text)
            return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == key), None)
        except (OSError, ValueError, IndexError):
            return None

    def peak_bytes(self):
        """Page cache included. None where the kernel does not say."""
        v1 = self.version() == 1
        return self._number("memory.max_usage_in_bytes" if v1 else "memory.peak") if self.path else None

    def out_of_memory(self):
        """Whether the kernel killed something in here for memory."""
        v1 = self.version() == 1
        return bool(self.path and self._number("memory.oom_control" if v1 else "memory.events", "oom_kill"))

    def __exit__(self, *_):
        path, self.path = self.path, None
        if not path:
            return
        deadline = time.monotonic() + 5
        while True:
            try:
                os.rmdir(path)
                return
            except OSError:  # something still runs in there, or the kernel is not done with what did
                if time.monotonic() > deadline:
                    raise
            with open(f"{path}/cgroup.procs") as f:
                for pid in f.read().split():
                    try:
                        os.kill(int(pid), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            time.sleep(0.02)


class Throttle:
    """A cgroup (version 1 or 2) in which the drive below `path` reads at most `bytes_per_second`; nothing where that is None.

    Only reads past the page cache are sure to be held to it. `enter` is for the child (preexec_fn).
    """

    ROOT = "/sys/fs/cgroup"

    def __init__(self, path, bytes_per_second):
        self.rate, self.group = bytes_per_second, None
        if self.rate is None:
            return
        number = os.stat(path).st_dev
        self.drive = f"{os.major(number)}:{os.minor(number)}"
        node = f"/sys/dev/block/{self.drive}"
        if os.path.exists(node + "/partition"):  # limits are for whole drives
            with open(os.path.realpath(node) + "/../dev", encoding="ascii") as f:
                self.drive = f.read().strip()

    def __enter__(self):
        if self.rate is None:
            return self
        v1 = os.path.isdir(self.ROOT + "/blkio")
        base = self.ROOT + "/blkio" if v1 else self.ROOT
        if not v1:
            try:
                Cgroup._write(f"{base}/cgroup.subtree_control", "+io")
            except OSError:
                pass
        self.group = f"{base}/sluice-throttle-{os.getpid()}"
        os.makedirs(self.group, exist_ok=True)
        try:
            if v1:
                Cgroup._write(self.group + "/blkio.throttle.read_bps_device", f"{self.drive} {self.rate}")
            else:
                Cgroup._write(self.group + "/io.max", f"{self.drive} rbps={self.rate}")
        except OSError as e:
            self.__exit__()
            raise SystemExit(f"the drive {self.drive} cannot be throttled: {e} (it takes root, and cgroups for I/O)") from e
        return self

    def enter(self):
        if self.group:
            Cgroup._write(f"{self.group}/cgroup.procs", os.getpid())

    def __exit__(self, *_):
        group, self.group = self.group, None
        if group:
            os.rmdir(group)


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
    print(f"| {name} | {ta} | {tb} | {mb / ma:.3f} | {drift(a):+.1%} |", flush=True)


def environment(**extra):
    """Ours, without settings of Sluice but where its verdicts on drives are."""
    kept = {k: v for k, v in os.environ.items()
            if not (k.startswith("SLUICE_") and k != "SLUICE_CACHE_DIR") and k not in ("GGML_BACKEND_PATH", "LD_PRELOAD")}
    return {**kept, **extra}


def model_facts(sluice, model):
    facts = subprocess.run([sluice, "inspect", "--json", model], env=environment(), capture_output=True, text=True, check=True)
    return json.loads(facts.stdout)


def expert_bytes(sluice, model):
    return model_facts(sluice, model)["expert_bytes"]


def recorded_run(sluice, model, *options, timeout=1800, env=None, enter=None):
    """One greedy `sluice run --record` from a cold page cache: (the record's rows of decode, the text). `enter` is called in
    the child, and may put it into a cgroup."""
    with tempfile.TemporaryDirectory() as work:
        record = os.path.join(work, "record.jsonl")
        command = [sluice, "run", "-m", model, "--temp", "0", "--ignore-eos", "--no-history", "--record", record, *map(str, options)]
        drop_from_page_cache(model)
        done = subprocess.run(command, env=environment(**(env or {})), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=timeout, preexec_fn=enter)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(record, encoding="utf-8") as f:
            rows = [r for r in map(json.loads, f) if r["kind"] == "row" and r["phase"] == 1]
    if not rows:
        raise SystemExit(f"{' '.join(command)}: the record has no decode")
    return rows, done.stdout


def train_gate(sluice, model, path, tokens, threads, prompt="In the beginning"):
    """The correction of guesses that `path` names (sluice predict train), made from what the model writes unless it is there."""
    if os.path.exists(path):
        return
    with tempfile.TemporaryDirectory() as work:
        seen = os.path.join(work, "seen.f")
        for command in ([sluice, "run", "-m", model, "-p", prompt, "-n", str(tokens), "-t", str(threads), "--temp", "0.8", "--seed", "5",
                         "--ignore-eos", "--no-history", "--route-features", seen],
                        [sluice, "predict", "train", model, seen, "-o", path, "-t", str(threads)]):
            subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           check=True)


def total(rows, *columns):
    """Over rows of a record; what was not measured counts as 0."""
    return sum(r.get(c) or 0 for r in rows for c in columns)


def drift(values):
    """The later half against the first."""
    half = len(values) // 2
    return statistics.median(values[half:]) / statistics.median(values[:half]) - 1 if half else 0


def llama_bench(binary, model, threads, n_prompt, n_gen, repetitions=1, extra_env=None, limit=None):
    """tok/s of one llama-bench process, one value per repetition."""
    env = environment(**(extra_env or {}))
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
