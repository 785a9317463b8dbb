#!/usr/bin/env python3
"""The proof that --ram holds for a whole process, and that nothing is ever killed for memory.

With a growing context (200 tokens) and no swap (where the cgroup does not let it be shut off, that is said):
  - asked with less and less patience for what a number must be, `sluice run` refuses in words and names a number; the
    one that it arrives at is enough, and the process's peak stays within it;
  - memory cgroups of that size, a little more, and plenty: the run ends well with the same text, with --ram and without,
    and with --ram the process's peak stays within the number there, too;
  - smaller cgroups: a refusal in words or a run that ends well, and never a kill.

Usage: ram_test.py SLUICE MODEL
Exit code 77 (skipped) where no memory cgroup can be made: for users other than root, and in containers without them.
"""
import os
import re
import subprocess
import sys
import time

SLUICE, MODEL = sys.argv[1:3]
TOKENS, CONTEXT = 200, 8192
MIB = 1 << 20
PAGE = 4096


def check(ok, text):
    if not ok:
        print(f"FAILED: {text}")
        sys.exit(1)


def swap_of_machine():
    with open("/proc/meminfo") as f:
        return int(re.search(r"^SwapTotal: +(\d+)", f.read(), re.M).group(1)) * 1024


class Group:
    """A memory cgroup of version 1 or 2, or none."""

    def __init__(self, limit):
        self.v1 = os.path.isdir("/sys/fs/cgroup/memory")
        self.path = f"/sys/fs/cgroup/{'memory/' if self.v1 else ''}sluice-ram-{os.getpid()}"
        os.mkdir(self.path)
        limit = (limit + PAGE - 1) // PAGE * PAGE
        self.limit = limit
        self.write("memory.limit_in_bytes" if self.v1 else "memory.max", limit)
        self.may_swap = None  # why
        try:
            self.write(*(("memory.memsw.limit_in_bytes", limit) if self.v1 else ("memory.swap.max", 0)))
        except OSError as e:
            if swap_of_machine() > 0:
                self.may_swap = str(e)

    def write(self, name, value):
        with open(f"{self.path}/{name}", "w") as f:
            f.write(str(value))

    def read(self, name):
        with open(f"{self.path}/{name}") as f:
            return f.read()

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def kills(self):
        text = self.read("memory.oom_control" if self.v1 else "memory.events")
        return int(re.search(r"^oom_kill (\d+)", text, re.M).group(1))

    def peak(self):
        return int(self.read("memory.max_usage_in_bytes" if self.v1 else "memory.peak"))

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:  # its last process is still going
                time.sleep(0.1)


def run(*options, group=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_") and k != "GGML_BACKEND_PATH"}
    command = [SLUICE, "run", "--no-history", "-m", MODEL, "-p", "In the beginning", "-n", str(TOKENS), "--temp", "0", "-t", "1",
               "-c", str(CONTEXT), "--ignore-eos", *options]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment, preexec_fn=group.enter if group else None)
    out, err = child.stdout.read(), child.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, out, err, usage.ru_maxrss * 1024


def can_limit():
    """Whether a memory cgroup can be made here, and limits what is in it."""
    try:
        group = Group(64 * MIB)
    except OSError as e:
        return f"no memory cgroup can be made: {e}"
    if group.may_swap:
        print(f"swap cannot be shut off in a cgroup here ({group.may_swap}): what follows shows no kill, but not that "
              "nothing is swapped")
    try:
        subprocess.run(["true"], preexec_fn=group.enter, check=True)
        group.kills(), group.peak()
    except (OSError, AttributeError, ValueError, subprocess.SubprocessError) as e:
        return f"a memory cgroup cannot be used: {e}"
    finally:
        group.remove()
    return None


def main():
    why = "only root may make a memory cgroup" if os.geteuid() != 0 else can_limit()
    if why:
        print(f"skipped: {why}")
        return 77

    code, text, err, peak = run()
    check(code == 0, f"without limits it ends with {code}:\n{err[-2000:]}")
    print(f"without limits: peak {peak / MIB:.1f} MiB")

    # What it says is enough is enough, in at most a few steps: the model, then each buffer of the context, are known
    # only one after the other.
    number = 16
    for _ in range(8):
        code, out, err, peak = run("--ram", str(number))
        if code == 0:
            break
        check(code > 0, f"--ram {number}: killed by signal {-code}")
        named = re.findall(r"(?:at least|that is) (\d+) MiB", err)
        check("--ram" in err and named, f"--ram {number}: a refusal without the number that would do:\n{err[-2000:]}")
        print(f"--ram {number}: refused, {named[-1]} MiB would do (peak {peak / MIB:.1f} MiB)")
        check(peak <= number * MIB + 48 * MIB, "the refusal came too late")
        check(int(named[-1]) > number, "the number named is no larger")
        number = int(named[-1])
    check(code == 0, f"no number was enough:\n{err[-2000:]}")
    print(f"--ram {number}: peak {peak / MIB:.1f} MiB")
    check(out == text, "another text with --ram")
    check(peak <= number * MIB, f"the peak of {peak} bytes is above --ram {number}")

    def in_group(part, ram=None, may_refuse=False):
        options = ["--ram", str(ram)] if ram else []
        name = f"cgroup of {number * part:.0f} MiB {' '.join(options)}"
        group = Group(int(number * MIB * part))
        try:
            code, out, err, peak = run(*options, group=group)
            print(f"{name}: {'ends well' if code == 0 else 'refused'}, peak {peak / MIB:.1f} MiB, of the cgroup "
                  f"{group.peak() / MIB:.1f}")
            check(group.kills() == 0 and code >= 0, f"{name}: killed for memory:\n{err[-2000:]}")
            check(code == 0 or may_refuse, f"{name}: ends with {code}:\n{err[-2000:]}")
            check(code == 0 or re.search(r"sluice: .*[KMG]iB", err), f"{name}: no reason given:\n{err[-2000:]}")
            check(code != 0 or out == text, f"{name}: another text")
            check(group.peak() <= group.limit, f"{name}: the cgroup's peak is above its limit")
            check(not ram or peak <= ram * MIB, f"{name}: the peak of {peak} bytes is above --ram {ram}")
        finally:
            group.remove()

    for part in (1.0, 1.1, 1.5, 4.0):
        in_group(part)
        in_group(part, ram=int(number * part))
        in_group(part, ram=number)
    for part in (0.9, 0.75, 0.5, 0.3):
        in_group(part, may_refuse=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
