#!/usr/bin/env python3
"""Owns: the race: commands ("arms") on the same model and prompt, in turns, each in a memory cell, with a clean page cache.

It measures and judges nothing: medians, intervals, ratios and verdicts are made by `sluice report` from the file that is
written here (the rules are in src/report/race.h). Line 1 says what raced on what; then there is a line for every run,
written when the run is over; the last line says that all runs were made. A race that was killed leaves a readable file,
and --resume FILE makes the runs that are missing. README.md beside this file says how to add an arm.
"""
import argparse
import ctypes
import datetime
import hashlib
import json
import math
import os
import platform
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from common import MIB, Cgroup, drop_from_page_cache  # noqa: E402

SCHEMA = 1
OUTPUT_CAP = 64 * MIB  # of one stream of one run: what is read of it
OUTPUT_LIMIT = 256 * MIB  # an arm that writes more than that to one of them is ended
LOOK_EVERY_S = 0.1     # at how much it has written
TAIL = 400             # characters of output in an error
GRACE_S = 10           # between the polite signal at the time limit and the other one
libc = ctypes.CDLL(None, use_errno=True)


class RaceError(Exception):
    """A sentence for whoever started the race."""


class Unread(Exception):
    """A run whose output does not hold what its adapter promises."""


def clean(text):
    """Valid UTF-8 whatever the bytes of file names and outputs were."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shown(text):
    """Without the directories of whoever runs this: race files get published."""
    home = os.path.expanduser("~")
    text = text.replace(ROOT + "/", "")
    return clean(text.replace(home + "/", "~/") if len(home) > 1 else text)


def read_text(path, default=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(OUTPUT_CAP).strip()
    except OSError:
        return default


# ---- adapters

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
SECTIONS = ("decode", "prefill", "load")
KEYS = {"": {"name", "includes", "command", "env", "version", "files", "exact", "forced", "min_ram", "not_run_here",
             "output", *SECTIONS},
        "output": {"from", "after", "before"},
        "number": {"from", "regex", "counts_first", "where", "value", "over", "scale"}}


def render(text, values, where):
    def one(match):
        name = match.group(1)
        if values.get(name) is None:
            known = ", ".join("{" + n + "}" for n in sorted(values) if values[n] is not None)
            raise RaceError(f"{where}: nothing is known of the placeholder {{{name}}}; there are {known}, "
                            f"and --set {name}=VALUE makes it one")
        return str(values[name])
    return PLACEHOLDER.sub(one, text)


def check_keys(table, known, where):
    for key in table:
        if key not in known:
            raise RaceError(f'{where}: there is no key "{key}"; there are {", ".join(sorted(known))}')


class Arm:
    """One adapter, and the values that its placeholders have besides those of the run."""

    def __init__(self, spec, values):
        name, _, changes = spec.partition(":")
        path = name if os.path.exists(name) else os.path.join(ROOT, "bench/race/arms", name + ".toml")
        try:
            with open(path, "rb") as f:
                self.table = t = tomllib.load(f)
        except OSError as e:
            raise RaceError(f"no arm {name}: {e.strerror} ({shown(path)})") from None
        except tomllib.TOMLDecodeError as e:
            raise RaceError(f"{shown(path)}: {e}") from None
        self.where = shown(path)
        check_keys(t, KEYS[""], self.where)
        self.name = t.get("name") or os.path.basename(path).removesuffix(".toml")
        self.values = dict(values)
        for change in filter(None, changes.split(",")):
            key, equals, value = change.partition("=")
            if not equals or key not in values or key in ("model", "prompt", "prompt_file", "n_predict", "threads", "ctx"):
                raise RaceError(f'--arm {spec}: "{change}" is no change of an arm; all arms have the same model, prompt, '
                                "tokens, threads and context")
            self.values[key] = value
        if changes:
            self.name += f" ({changes})"
        self._check()

    def _check(self):
        t = self.table
        if not isinstance(t.get("command"), list) or not t["command"]:
            raise RaceError(f"{self.where}: it needs a list named command")
        if "decode" not in t:
            raise RaceError(f"{self.where}: it needs a table named decode, which says how to read its tok/s")
        if t.get("forced") and self.values.get("continuation_file") is None:
            raise RaceError(f"{self.where}: this arm writes a given text (forced): name it with --continuation FILE")
        check_keys(t.get("output", {}), KEYS["output"], f"{self.where}, [output]")
        for section in SECTIONS:
            rule = t.get(section)
            if rule is None:
                continue
            at = f"{self.where}, [{section}]"
            check_keys(rule, KEYS["number"], at)
            if ("regex" in rule) == ("value" in rule):
                raise RaceError(f"{at}: it needs either a regex, or a value: the path of a number in the JSON of {{record}}")
            if "regex" in rule:
                self._check_regex(rule["regex"], at, "number")
                if rule.get("from", "stderr") not in ("stdout", "stderr", "record"):
                    raise RaceError(f"{at}: from is stdout, stderr or record (the file that it was given as {{record}})")
                if rule.get("counts_first") and "count" not in re.compile(rule["regex"]).groupindex:
                    raise RaceError(f"{at}: counts_first needs a group named count in the regex")
        if t.get("output", {}).get("from", "stdout") not in ("stdout", "stderr", "none"):
            raise RaceError(f"{self.where}, [output]: from is stdout, stderr or none")
        for key in ("after", "before"):
            if key in t.get("output", {}):
                self._check_regex(t["output"][key], f"{self.where}, [output] {key}", None)
        self.render({"record": "RECORD"})

    @staticmethod
    def _check_regex(text, at, group):
        try:
            compiled = re.compile(text)
        except re.error as e:
            raise RaceError(f"{at}: the regex does not compile: {e}") from None
        if group and group not in compiled.groupindex:
            raise RaceError(f"{at}: the regex has no group named {group}: (?P<{group}>...)")

    def render(self, more):
        values = {**self.values, **more}
        command = [render(a, values, self.where) for a in self.table["command"]]
        env = {k: render(str(v), values, self.where) for k, v in self.table.get("env", {}).items()}
        return command, env

    def environment(self, env):
        """What the caller has set for Sluice or the loader would make arms differ in secret."""
        kept = {k: v for k, v in os.environ.items()
                if not k.startswith(("SLUICE_", "GGML_", "LLAMA_ARG_")) and k != "LD_PRELOAD"}
        kept.update(env)
        return kept

    def describe(self, baseline):
        command, env = self.render({"record": "RECORD"})
        version = []
        for v in self.table.get("version", []):
            argv = [render(a, self.values, self.where) for a in v]
            try:
                done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      text=True, errors="replace", timeout=60, env=self.environment({}))
            except (OSError, subprocess.TimeoutExpired) as e:
                raise RaceError(f"{self.where}: {shlex.join(argv)} does not say its version: {e}") from None
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            version.append(lines[0][:200] if lines else "says no version")
        # The same version is often built twice; the bytes tell which one ran.
        digests = {}
        for f in self.table.get("files", []):
            path = render(f, self.values, self.where)
            try:
                with open(path, "rb") as file:
                    digests[os.path.basename(path)] = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            except OSError as e:
                raise RaceError(f"{self.where}: {path}: {e.strerror}") from None
        return {"name": clean(self.name), "command": [shown(a) for a in command],
                "env": {k: shown(v) for k, v in env.items()}, "version": clean("; ".join(version)) or None,
                "files": digests, "includes": self.table.get("includes"), "baseline": baseline,
                "exact": bool(self.table.get("exact")), "forced": bool(self.table.get("forced"))}


def tail_of(text):
    text = text.strip()
    return text if len(text) <= TAIL else "..." + text[-TAIL:]


def walk(value, path):
    for part in path.split("."):
        if isinstance(value, list) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value


def number_of(section, rule, streams):
    """One figure of a run, as its adapter says; Unread if it is not there."""
    if "regex" in rule:
        stream = rule.get("from", "stderr")
        matches = list(re.finditer(rule["regex"], streams[stream], re.M))
        if not matches:
            raise Unread(f"[{section}] the pattern {rule['regex']!r} matches nothing on {stream}, which ends: "
                         f"{tail_of(streams[stream])!r}")
        found = matches[-1]
        value = as_number(found["number"])
        if value is not None and rule.get("counts_first"):
            # n tokens over the time of n - 1: the first came out of the prompt's last batch.
            count = as_number(found["count"]) or 0
            value = value * (count - 1) / count if count > 1 else None
    else:
        text = streams["record"]
        try:
            objects = [json.loads(text)]
        except ValueError:
            objects = []
            for line in text.splitlines():
                try:
                    objects.append(json.loads(line))
                except ValueError:
                    pass  # a killed program's last line
        wanted = rule.get("where", {})
        objects = [o for o in objects if isinstance(o, dict) and all(walk(o, k) == v for k, v in wanted.items())]
        value = as_number(walk(objects[-1], rule["value"])) if objects else None
        if value is not None and "over" in rule:
            below = as_number(walk(objects[-1], rule["over"]))
            value = value / below if below else None
        if value is None:
            at = f" of a line with {wanted}" if wanted else ""
            raise Unread(f"[{section}] the record that it writes has no number {rule['value']}{at}; it ends: "
                         f"{tail_of(text)!r}")
    value = value * rule.get("scale", 1) if value is not None else None
    if value is None or not math.isfinite(value) or value <= 0:
        raise Unread(f"[{section}] found no positive number")
    return value


def as_number(value):
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def output_of(rule, streams):
    """The text whose digest is compared, without white space at its end; None where the adapter names none."""
    stream = rule.get("from", "stdout")
    if stream == "none":
        return None
    text = streams[stream]
    if "after" in rule:
        found = re.search(rule["after"], text, re.M)
        if not found:
            raise Unread(f"[output] the pattern {rule['after']!r} matches nothing on {stream}, which ends: "
                         f"{tail_of(text)!r}")
        text = text[found.end():]
    if "before" in rule:
        found = re.search(rule["before"], text, re.M)
        if found:
            text = text[:found.start()]
    return text.rstrip()


# ---- the machine

def model_files(path):
    """The file, or all files of a split set."""
    m = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    return [f"{m[1]}-{i:05d}-of-{m[2]}.gguf" for i in range(1, int(m[2]) + 1)] if m else [path]


def describe_model(files):
    digest = hashlib.sha256()
    size = 0
    for path in files:
        try:
            with open(path, "rb") as f:
                n = os.fstat(f.fileno()).st_size
                digest.update(n.to_bytes(8, "little"))
                digest.update(f.read(MIB))
                f.seek(max(0, n - MIB))
                digest.update(f.read(MIB))
        except OSError as e:
            raise RaceError(f"{path}: {e.strerror}") from None
        size += n
    return {"name": clean(os.path.basename(files[0])), "bytes": size, "files": len(files),
            "digest": digest.hexdigest(), "digest_of": "size, first and last MiB of each file"}


def describe_machine(model):
    info = read_text("/proc/cpuinfo")
    m = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", info, re.M)
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+)", read_text("/proc/meminfo"), re.M))
    kib = lambda name: int(meminfo[name]) * 1024 if name in meminfo else None  # noqa: E731
    st = os.stat(model)
    device = f"{os.major(st.st_dev)}:{os.minor(st.st_dev)}"
    file_system = None
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == device:
            file_system = right.split()[0]
    sys_block = f"/sys/dev/block/{device}"
    if os.path.exists(sys_block + "/partition"):
        sys_block += "/.."
    drive = read_text(sys_block + "/device/model") or os.path.basename(os.path.realpath(sys_block))
    rotational = read_text(sys_block + "/queue/rotational")
    return {"cpu": clean(m[1]) if m else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "ram_bytes": kib("MemTotal"), "swap_bytes": kib("SwapTotal"), "kernel": platform.release(),
            "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
            "drive": clean(drive) or None, "rotational": rotational == "1" if rotational else None,
            "file_system": file_system, "cgroup": Cgroup.version()}


def resident_bytes(path):
    """How much of a file is in the page cache; None where the kernel does not say."""
    page = os.sysconf("SC_PAGE_SIZE")
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    total = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        for at in range(0, size, 1024 * MIB):
            n = min(1024 * MIB, size - at)
            address = libc.mmap(None, n, 1, 1, fd, at)  # PROT_READ, MAP_SHARED
            if address in (None, ctypes.c_void_p(-1).value):
                return None
            pages = ctypes.create_string_buffer((n + page - 1) // page)
            ok = libc.mincore(address, n, pages) == 0
            libc.munmap(address, n)
            if not ok:
                return None
            total += pages.raw.count(b"\1") * page
    finally:
        os.close(fd)
    return total


def empty_page_cache(files):
    """Bytes of the model that are in memory all the same: another process may hold them mapped."""
    left = 0
    for path in files:
        drop_from_page_cache(path)
        n = resident_bytes(path)
        left = None if n is None or left is None else left + n
    return left


def busy_seconds():
    fields = [int(f) for f in read_text("/proc/stat").splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for a drive


def pressure(what):
    m = re.search(r"some .*total=(\d+)", read_text(f"/proc/pressure/{what}"))
    return int(m[1]) / 1e6 if m else None


def swap_used():
    info = dict(re.findall(r"^(\w+):\s+(\d+)", read_text("/proc/meminfo"), re.M))
    return (int(info.get("SwapTotal", 0)) - int(info.get("SwapFree", 0))) * 1024


def tree_read_bytes():
    """What this process and all that it has waited for read from drives."""
    m = re.search(r"^read_bytes: (\d+)", read_text("/proc/self/io"), re.M)
    return int(m[1]) if m else None


def wait_for_quiet(limit_s, busy_limit):
    """The load average still remembers our own last run, so look at what happens now."""
    begin = time.monotonic()
    while True:
        b, io, t = busy_seconds(), pressure("io"), time.monotonic()
        time.sleep(0.3 if limit_s > 0 else 0.03)
        span = time.monotonic() - t
        cores = (busy_seconds() - b) / span
        waiting = (pressure("io") - io) / span if io is not None else None
        quiet = cores <= busy_limit and (waiting is None or waiting <= 0.2)
        waited = time.monotonic() - begin
        if quiet or waited >= limit_s:
            return {"quiet": quiet, "busy_cores": round(cores, 3),
                    "io_pressure": round(waiting, 3) if waiting is not None else None, "waited_s": round(waited, 2),
                    "loadavg": float(read_text("/proc/loadavg", "0").split()[0])}


# ---- one run

def signal_group(pid, number):
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def ended_within(pidfd, seconds):
    return bool(select.select([pidfd], [], [], max(0, seconds))[0])


def ended_or_flooding(pidfd, seconds, outputs):
    """Why the arm is to be ended before it ends by itself, or None."""
    deadline = time.monotonic() + seconds
    while not ended_within(pidfd, min(LOOK_EVERY_S, deadline - time.monotonic())):
        if any(os.fstat(o.fileno()).st_size > OUTPUT_LIMIT for o in outputs):
            return f"more than {OUTPUT_LIMIT // MIB} MiB of output"
        if time.monotonic() >= deadline:
            return f"time limit of {seconds:g} s"
    return None


class Watcher:
    """Ends an arm with all that it started, should the race itself be killed: the pipe then ends without a word."""

    SCRIPT = 'read -r group && { read -r word || kill -s KILL -- "-$group"; }'

    def __enter__(self):
        self.process = subprocess.Popen(["sh", "-c", self.SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        return self

    def watch(self, group):
        self.process.stdin.write(f"{group}\n".encode())
        self.process.stdin.flush()

    def __exit__(self, *_):
        try:
            self.process.stdin.write(b"well\nwell\n")  # also where there was nothing to watch
            self.process.stdin.close()
        except OSError:
            pass
        self.process.wait()


def run_once(arm, ram_bytes, files, options, work):
    """One run of an arm in its cell, as the fields of its sample. Never raises because of what the arm did."""
    record = os.path.join(work, "record.jsonl")
    if os.path.exists(record):
        os.unlink(record)
    command, env = arm.render({"record": record})
    load = wait_for_quiet(options.wait, options.busy_limit)
    left = empty_page_cache(files)
    sample = {"decode_tokens_per_second": None, "prefill_tokens_per_second": None, "load_s": None, "wall_s": None,
              "read_bytes": None, "peak_bytes": None, "output_digest": None, "exit": None, "error": None,
              "page_cache_left_bytes": left, "swap_growth_bytes": None, "other_cores": None, "load": load}
    paths = {s: os.path.join(work, s) for s in ("stdout", "stderr")}
    problem, late = None, False

    with Watcher() as watcher, Cgroup(ram_bytes, always=options.cgroups) as group, \
            open(paths["stdout"], "wb") as out, open(paths["stderr"], "wb") as err:
        def prepare():
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: until the watcher knows of it
            group.enter()
        reads, swap, busy = tree_read_bytes(), swap_used(), busy_seconds()
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        try:
            child = subprocess.Popen(command, env=arm.environment(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                     preexec_fn=prepare, start_new_session=True, cwd=work)
        except (OSError, subprocess.SubprocessError) as e:
            sample["error"] = clean(f"cannot start {shown(command[0])}: {e}")
            return sample
        pidfd = os.pidfd_open(child.pid)
        try:
            watcher.watch(child.pid)
            problem = ended_or_flooding(pidfd, options.time_limit, (out, err))
            if problem is not None:
                late = True
                signal_group(child.pid, signal.SIGINT)  # many programs then say how far they came
                ended_within(pidfd, GRACE_S)
        finally:  # also at Ctrl-C, and for what the arm itself started and left behind
            signal_group(child.pid, signal.SIGKILL)
            child.wait()
            os.close(pidfd)
        sample["wall_s"] = round(time.monotonic() - begin, 4)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
        sample["other_cores"] = round(max(0.0, busy_seconds() - busy - cpu) / max(sample["wall_s"], 1e-3), 3)
        sample["swap_growth_bytes"] = swap_used() - swap
        now = tree_read_bytes()
        sample["read_bytes"] = now - reads if now is not None and reads is not None else None
        sample["peak_bytes"] = group.peak_bytes()
        sample["exit"] = child.returncode
        if group.out_of_memory():
            problem = "out of memory in its cell"

    streams = {}
    for name, path in paths.items():
        with open(path, "rb") as f:
            streams[name] = f.read(OUTPUT_CAP).decode("utf-8", "replace")
    streams["record"] = read_text(record)
    if problem is None and child.returncode != 0:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
        problem = f"ended with {how}: {tail_of(streams['stderr'] or streams['stdout'])}"
    for section, field in (("decode", "decode_tokens_per_second"), ("prefill", "prefill_tokens_per_second"),
                           ("load", "load_s")):
        if section not in arm.table:
            continue
        try:
            sample[field] = number_of(section, arm.table[section], streams)
        except Unread as e:  # after a failure the figures are a bonus
            problem = problem or str(e)
    if late and sample["decode_tokens_per_second"] is not None:
        problem += f"; until then {sample['decode_tokens_per_second']:.3g} tok/s in decode"
    if problem is None:
        try:
            text = output_of(arm.table.get("output", {"from": "none"}), streams)
            sample["output_digest"] = None if text is None else hashlib.sha256(text.encode()).hexdigest()
        except Unread as e:
            problem = str(e)
    sample["error"] = clean(problem) if problem else None
    return sample


# ---- the whole race

class Progress:
    """One moving line on a terminal; nothing in a pipe."""

    def __init__(self, total):
        self.on, self.total, self.begin = sys.stderr.isatty(), total, time.monotonic()
        self.spent = {}

    def before(self, done, cell, arm, label, remaining):
        if self.on:
            sys.stderr.write(f"\r\033[K[{done}/{self.total}] {cell}, {label}: {arm}{self._eta(remaining)}"[:160])
            sys.stderr.flush()

    def after(self, cell, arm, seconds, error):
        self.spent.setdefault((cell, arm), []).append(seconds)
        if self.on and error:
            sys.stderr.write(f"\r\033[K{cell}, {arm}: {' '.join(error.split())[:300]}\n")

    def _eta(self, remaining):
        known = [s for v in self.spent.values() for s in v]
        if not known:
            return ""
        left = 0.0
        for cell, arm in remaining:
            same = self.spent.get((cell, arm)) or [s for (_, a), v in self.spent.items() if a == arm for s in v] or known
            left += sum(same) / len(same)
        return f"; about {int(left) // 60}:{int(left) % 60:02d} left"

    def close(self):
        if self.on:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def parse_cells(text, model_bytes):
    cells = []
    for name in (n.strip() for n in text.split(",")):
        m = re.fullmatch(r"(\d+(?:\.\d+)?)%", name)
        if name == "none":
            ram = None
        elif m and float(m[1]) > 0:
            ram = int(model_bytes * float(m[1]) / 100) // 4096 * 4096
        elif re.fullmatch(r"\d+[MG]", name) and int(name[:-1]) > 0:
            ram = int(name[:-1]) * (MIB if name[-1] == "M" else 1024 * MIB)
        else:
            raise RaceError(f'--ram: "{name}" is no cell: a share of the model as 50%, a size as 800M or 4G, or none')
        if any(c["name"] == name for c in cells):
            raise RaceError(f"--ram: {name} is there twice")
        cells.append({"name": name, "ram_bytes": ram})
    return cells


def check_cgroups(cells):
    """Whether groups can be made here. Limited cells are refused without them: an unlimited run would pass for limited."""
    try:
        with Cgroup(256 * MIB):
            return True
    except OSError as e:
        limited = [c["name"] for c in cells if c["ram_bytes"] is not None]
        if limited:
            raise RaceError(f"no memory cgroup can be made here ({e.strerror}), so there can be no cell of "
                            f"{', '.join(limited)}: run as root, or with --ram none") from None
        return False


def read_back(path, header):
    """The runs that a file already holds. Its header must be that of the race that is asked for now."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError as e:
        raise RaceError(f"{path}: {e.strerror}") from None
    whole = data[:data.rfind(b"\n") + 1]  # what a kill has broken off is measured again
    lines = []
    for n, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise RaceError(f"{path}: line {n} is not JSON") from None
    if not lines or not isinstance(lines[0], dict) or lines[0].get("kind") != "race":
        raise RaceError(f"{path} is no race")
    for key in header:
        if key not in ("time", "commit") and lines[0].get(key) != json.loads(json.dumps(header[key])):
            raise RaceError(f"{path} was begun with another {key}: a race is one machine, one build and one command line")
    if any(o.get("kind") == "end" for o in lines):
        raise RaceError(f"{path} is complete: there is nothing to resume")
    done = {(o["cell"], o["arm"], o["round"]) for o in lines if o.get("kind") == "sample"}
    return done, len(whole)


def commit_id():
    def git(*args):
        done = subprocess.run(["git", "-C", ROOT, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout.strip() if done.returncode == 0 else None
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if git("status", "--porcelain", "-uno") else "") if head else None
    except OSError:
        return None


def order_of(round_number, arms):
    """A B C, C B A, A B C, ...: whatever drifts slowly meets all arms alike."""
    return arms if round_number % 2 == 0 else arms[::-1]


def parse_arguments(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--arm", action="append", required=True, metavar="NAME[:KEY=VALUE,...]",
                   help="an adapter: a file, or a name in bench/race/arms; may change its cache_mb or what --set has set")
    p.add_argument("--baseline", metavar="NAME", help="the arm that the others are compared with (default: the first)")
    p.add_argument("--ram", default="none", help="cells: 30%%,50%% (of the model's size), 800M, 4G, none (default: none)")
    p.add_argument("--rounds", type=int, default=4, help="an even number gives each arm each place equally often")
    p.add_argument("-n", "--n-predict", type=int, default=12)
    p.add_argument("--prompt", default="In the beginning")
    p.add_argument("--prompt-file")
    p.add_argument("--continuation", metavar="FILE", help="text for arms that can be made to write a given one")
    p.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("-c", "--ctx", type=int, default=512)
    p.add_argument("--cache-mb", default="auto", help="for arms with a cache (default: auto, as the limit says)")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a placeholder of adapters")
    p.add_argument("--time-limit", type=float, default=120, help="seconds a run; one that takes longer has failed")
    p.add_argument("--wait", type=float, default=20, help="at most so many seconds for a quiet machine, before each run")
    p.add_argument("--busy-limit", type=float, default=0.15, help="cores that others may use on a quiet machine")
    p.add_argument("--drift-limit", type=float, default=0.10, help="for the judge: change of the baseline that spoils a cell")
    to = p.add_mutually_exclusive_group(required=True)
    to.add_argument("--out", metavar="FILE")
    to.add_argument("--resume", metavar="FILE", help="make what is missing in it; everything else must be as it was")
    options = p.parse_args(argv)
    for name in ("rounds", "n_predict", "threads", "ctx", "time_limit"):
        if getattr(options, name) <= 0:
            raise RaceError(f"--{name.replace('_', '-')} must be more than 0")
    return options


def race(options):
    files = model_files(os.path.abspath(options.model))
    model = describe_model(files)
    cells = parse_cells(options.ram, model["bytes"])
    prompt = options.prompt
    if options.prompt_file:
        try:
            with open(options.prompt_file, encoding="utf-8") as f:
                prompt = f.read().rstrip("\n")
        except (OSError, UnicodeDecodeError) as e:
            raise RaceError(f"{options.prompt_file}: {e}") from None
    if not prompt:
        raise RaceError("the prompt is empty")

    with tempfile.TemporaryDirectory(prefix="sluice-race-") as work:
        prompt_file = os.path.join(work, "prompt.txt")
        with open(prompt_file, "w", encoding="utf-8") as f:
            f.write(prompt)
        values = {"model": files[0], "prompt": prompt, "prompt_file": prompt_file, "n_predict": options.n_predict,
                  "threads": options.threads, "ctx": options.ctx, "cache_mb": options.cache_mb, "record": None,
                  "continuation_file": os.path.abspath(options.continuation) if options.continuation else None}
        for setting in options.set:
            name, equals, value = setting.partition("=")
            if not equals or not PLACEHOLDER.fullmatch("{" + name + "}"):
                raise RaceError(f"--set {setting}: it should be name=value, the name in small letters")
            if name in values:
                raise RaceError(f"--set {setting}: {name} has an option of its own")
            values[name] = os.path.abspath(value) if os.path.exists(value) else value
        arms = [Arm(spec, values) for spec in options.arm]
        by_name = {a.name: a for a in arms}
        if len(by_name) != len(arms):
            raise RaceError("two arms have the same name")
        baseline = options.baseline or arms[0].name
        if baseline not in by_name:
            raise RaceError(f"--baseline {baseline}: the arms are {', '.join(by_name)}")
        options.cgroups = check_cgroups(cells)

        # An arm that cannot fit would only be killed: its adapter says how much it needs.
        skipped = [{"cell": c["name"], "arm": a.name,
                    "why": f"it needs {a.table['min_ram']:g} times the model in memory"}
                   for c in cells for a in arms
                   if c["ram_bytes"] is not None and c["ram_bytes"] < a.table.get("min_ram", 0) * model["bytes"]]
        out_of = {(s["cell"], s["arm"]) for s in skipped}
        header = {"sluice_record": SCHEMA, "kind": "race",
                  "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                  "commit": commit_id(), "machine": describe_machine(files[0]), "model": model,
                  "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(), "prompt_bytes": len(prompt.encode()),
                  "continuation": bool(options.continuation), "n_predict": options.n_predict,
                  "threads": options.threads, "ctx": options.ctx, "rounds": options.rounds,
                  "order": "forward in even rounds, backward in odd ones", "time_limit_s": options.time_limit,
                  "drift_limit": options.drift_limit, "swap_in_cells": "off",
                  "arms": [a.describe(a.name == baseline) for a in arms], "cells": cells, "skipped": skipped}
        # The prompt's temporary file has another name each time.
        for a in header["arms"]:
            a["command"] = [x.replace(work, "TMP") for x in a["command"]]
            a["env"] = {k: v.replace(work, "TMP") for k, v in a["env"].items()}

        plan = []
        for cell in cells:
            position = 0
            for r in range(options.rounds):
                for arm in order_of(r, arms):
                    if (cell["name"], arm.name) not in out_of:
                        plan.append((cell, arm, r, position))
                        position += 1
        done = set()
        if options.resume:
            done, length = read_back(options.resume, header)
            file = open(options.resume, "r+b")
            file.truncate(length)
            file.seek(length)
        else:
            try:
                file = open(options.out, "xb")
            except FileExistsError:
                raise RaceError(f"{options.out} exists: continue it with --resume, or move it away") from None

        def write(line):
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

        with file:
            write({"kind": "resume", "time": header["time"]} if options.resume else header)
            progress = Progress(len(plan))
            try:
                for i, (cell, arm, r, position) in enumerate(plan):
                    if (cell["name"], arm.name, r) in done:
                        continue
                    progress.before(i, cell["name"], arm.name, f"round {r + 1} of {options.rounds}",
                                    [(c["name"], a.name) for c, a, _, _ in plan[i:]])
                    begin = time.monotonic()
                    sample = run_once(arm, cell["ram_bytes"], files, options, work)
                    write({"kind": "sample", "cell": cell["name"], "arm": arm.name, "round": r, "position": position,
                           **sample})
                    progress.after(cell["name"], arm.name, time.monotonic() - begin, sample["error"])
                write({"kind": "end"})
            finally:
                progress.close()


def main(argv=None):
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
    options = None
    try:
        options = parse_arguments(argv)
        race(options)
        return 0
    except RaceError as e:
        print(f"race: error: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"race: error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        path = options and (options.out or options.resume)
        print(f"race: interrupted; the same command with --resume {path} makes the rest", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
