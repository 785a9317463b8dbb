#!/usr/bin/env python3
# Owns: records to test the report with, made up but shaped like real ones: experts chosen with preference, a cache that
# fills, reads with a tail. The small ones are kept in data/ (make_records.py data); a long one is made when it is needed.
# Keeps: the same arguments write the same bytes. The numbers are nobody's measurements.
"""usage: make_records.py DIRECTORY            the records of tests/report/data
       make_records.py --long ROWS FILE    one of that many decoded tokens"""
import json
import random
import sys

PARTS = ["overhead", "dense", "router", "shared", "routed", "wait_read", "wait_join", "wait_late", "wait_lock", "convert",
         "manage", "sample", "detokenise", "output", "draft", "record"]
COLUMNS = (["model", "turn", "phase", "step", "start_ns", "tokens", "output_tokens", "wall_ns"] + [p + "_ns" for p in PARTS] +
           ["exact_bytes", "exact_physical_bytes", "predicted_bytes", "predicted_physical_bytes", "rejected_bytes",
            "engine_bytes", "kernel_bytes", "lookups", "hits", "misses", "joins", "late", "evictions_capacity",
            "evictions_shrink", "evictions_speculative", "rereads", "waves", "cache_bytes", "cache_slots", "cache_resident",
            "reads", "retries", "read_p50_ns", "read_p95_ns", "read_p99_ns", "read_max_ns", "read_busy_ns", "slack_p50_ns",
            "lateness_p50_ns", "queue_depth_max", "rss_bytes", "anon_bytes", "file_bytes", "swap_bytes",
            "mem_available_bytes", "mem_free_bytes", "swap_free_bytes", "psi_io_some_ns", "psi_io_full_ns",
            "psi_memory_some_ns", "psi_memory_full_ns", "major_faults", "minor_faults", "cpu_ns"])
EXPERT = 700_000


def line(**fields):
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n"


def bucket_top(ns):
    if ns < 16:
        return ns
    power = ns.bit_length() - 1
    first = (16 + ((ns >> (power - 4)) & 15)) << (power - 4)
    return first + (1 << (power - 4)) - 1


class Run:
    def __init__(self, seed, layers=6, experts=16, top_k=2, slots=40, drive_ms=0.35, dense_ms=4.0, columns=None):
        self.random = random.Random(seed)
        self.layers, self.experts, self.top_k, self.slots = layers, experts, top_k, slots
        self.drive_ms, self.dense_ms, self.columns = drive_ms, dense_ms, columns
        self.weights = [[1 / (1 + (e * 7 + l * 3) % experts) for e in range(experts)] for l in range(layers)]
        self.uses = [[0] * experts for _ in range(layers)]
        self.misses = [[0] * experts for _ in range(layers)]
        self.cache = {}
        self.clock = 250_000
        self.tick = 0
        self.latency = {0: {}, 1: {}}
        self.largest = {0: 0, 1: 0}
        self.steps = {0: 0, 1: 0}
        self.out = []
        self.last_sample = None

    def header(self, **more):
        options = {"cache_mb": {"value": self.slots * EXPERT >> 20, "set": True}, "io_threads": {"value": 4, "set": False},
                   "io_engine": {"value": "auto", "set": False}, "dense_weights": {"value": "anon", "set": False},
                   "odirect": {"value": True, "set": False}}
        fields = dict(kind="run", sluice_record=1, time="2026-01-01T12:00:00Z", program="run", scope="loop",
                      versions={"sluice": "0.1.0", "llama.cpp": "0.5.0", "ggml": "0.25.1"},
                      machine={"cpu": "a processor", "cores": 8, "ram_bytes": 16 << 30, "kernel": "6.1"},
                      options=options, host={"threads": 4, "ctx": 4096, "temp": 0}, parts=PARTS)
        fields.update(more)
        self.out.append(line(**fields))

    def model(self, name="made up 6x16", **more):
        self.out.append(line(kind="model", model=0, name=name, arch="qwen3moe", digest="00c0ffee00c0ffee",
                             bytes=self.layers * self.experts * EXPERT + (50 << 20), files=1,
                             layers=list(range(1, self.layers + 1)), experts=[self.experts] * self.layers, top_k=self.top_k,
                             expert_bytes=self.layers * self.experts * EXPERT, dense_bytes=50 << 20,
                             cycle_bytes=self.layers * self.top_k * EXPERT, drive="nvme", **more))
        self.out.append(line(kind="load", load_ns=120_000_000, dense_bytes=50 << 20))
        self.out.append(line(kind="cache", model=0, bytes=self.slots * EXPERT, slots=self.slots,
                             records=self.layers * self.experts, why="as asked"))

    def row(self, phase, tokens):
        r = self.random
        self.tick += 1
        layer = {"wait_ns": [], "routed_ns": [], "lookups": [], "hits": [], "physical_bytes": []}
        sums = dict(lookups=0, hits=0, misses=0, reads=0, evictions=0)
        latencies = []
        for l in range(self.layers):
            chosen = set()
            for _ in range(min(tokens * self.top_k, self.experts * 3)):
                chosen.add(r.choices(range(self.experts), self.weights[l])[0])
            hits = 0
            for e in sorted(chosen):
                self.uses[l][e] += 1
                if (l, e) in self.cache:
                    hits += 1
                else:
                    self.misses[l][e] += 1
                    if len(self.cache) >= self.slots:
                        del self.cache[min(self.cache, key=self.cache.get)]
                        sums["evictions"] += 1
                    for _ in range(3):
                        ns = int(self.drive_ms * 1e6 * r.lognormvariate(0, .45) * (8 if r.random() < .01 else 1))
                        latencies.append(ns)
                self.cache[l, e] = self.tick
            missed = len(chosen) - hits
            wait = int(missed * self.drive_ms * 1e6 * r.uniform(.5, .9)) + (r.randrange(20_000) if missed else 0)
            layer["wait_ns"].append(wait)
            layer["routed_ns"].append(int(len(chosen) * 150_000 * r.uniform(.9, 1.2)))
            layer["lookups"].append(len(chosen))
            layer["hits"].append(hits)
            layer["physical_bytes"].append(missed * (EXPERT + 4096))
            sums["lookups"] += len(chosen)
            sums["hits"] += hits
            sums["misses"] += missed
        for ns in latencies:
            top = bucket_top(ns)
            self.latency[phase][top] = self.latency[phase].get(top, 0) + 1
            self.largest[phase] = max(self.largest[phase], ns)
        noise = lambda ms: int(ms * 1e6 * r.uniform(.92, 1.15))
        parts = dict.fromkeys(PARTS, None)
        parts.update(overhead=noise(.3), dense=noise(self.dense_ms * (1 if phase else tokens * .2)),
                     routed=sum(layer["routed_ns"]), wait_read=sum(layer["wait_ns"]), convert=noise(.08) * sums["misses"],
                     manage=noise(.05), record=noise(.02))
        if phase:
            parts.update(sample=noise(.25), detokenise=noise(.01), output=noise(.05))
        wall = sum(v for v in parts.values() if v is not None)
        values = dict.fromkeys(COLUMNS)
        values.update({p + "_ns": v for p, v in parts.items()})
        values.update(model=0, turn=0, phase=phase, step=self.steps[phase], start_ns=self.clock, tokens=tokens,
                      output_tokens=1 if phase else None, wall_ns=wall, exact_bytes=sums["misses"] * EXPERT,
                      exact_physical_bytes=sums["misses"] * (EXPERT + 4096), engine_bytes=sums["misses"] * (EXPERT + 4096),
                      lookups=sums["lookups"], hits=sums["hits"], misses=sums["misses"],
                      evictions_capacity=sums["evictions"], rereads=sums["evictions"] // 2, waves=0,
                      cache_bytes=self.slots * EXPERT, cache_slots=self.slots, cache_resident=len(self.cache),
                      reads=len(latencies), retries=0, read_busy_ns=int(parts["wait_read"] * 1.15),
                      queue_depth_max=min(8, len(latencies)), major_faults=0, minor_faults=r.randrange(9),
                      cpu_ns=int(wall * 3.4))
        if latencies:
            latencies.sort()
            at = lambda share: latencies[min(len(latencies) - 1, int(share * len(latencies)))]
            values.update(read_p50_ns=at(.5), read_p95_ns=at(.95), read_p99_ns=at(.99), read_max_ns=latencies[-1])
        if self.last_sample is None or self.clock - self.last_sample >= 100_000_000:
            self.last_sample = self.clock
            anon = (80 << 20) + len(self.cache) * EXPERT + self.tick * 4096
            values.update(rss_bytes=anon + (30 << 20), anon_bytes=anon, file_bytes=30 << 20, swap_bytes=0,
                          mem_available_bytes=(9 << 30) - anon, mem_free_bytes=2 << 30, swap_free_bytes=0,
                          psi_io_some_ns=r.randrange(4_000_000), psi_io_full_ns=r.randrange(1_000_000),
                          kernel_bytes=sums["misses"] * (EXPERT + 4096))
        if self.columns is not None:
            values = {k: v if k in self.columns else None for k, v in values.items()}
        row = dict(kind="row", **values)
        if self.columns is None:
            row["layers"] = layer
        self.out.append(line(**row))
        self.clock += wall
        self.steps[phase] += 1

    def rows(self, prefill, decode):
        for _ in range(prefill):
            self.row(0, 32)
        for _ in range(decode):
            self.row(1, 1)

    def checkpoint(self):
        for phase, name in ((0, "prefill"), (1, "decode")):
            if self.latency[phase]:
                self.out.append(line(kind="latency", phase=name, rows=self.steps[phase], largest_ns=self.largest[phase],
                                     buckets=sorted(map(list, self.latency[phase].items()))))
        self.out.append(line(kind="experts", model=0, uses=self.uses, misses=self.misses))

    def end(self, status="ok", error=None):
        self.checkpoint()
        self.out.append(line(kind="end", status=status, error=error, output_digest="feed5eed", routes_digest="0123456789abcdef"))

    def save(self, path, cut=None):
        text = "".join(self.out)
        with open(path, "wb") as f:
            f.write(text.encode()[:cut])


HOSTILE = "<b>bold</b></script><script>document.title='taken'</script>\u2028\u2029 \"'`|\\ \x1b[31m& \u202e{{data}}"


def write_all(folder):
    small = Run(1)
    small.header()
    small.model()
    small.rows(2, 24)
    small.end()
    small.save(folder + "/complete.jsonl")

    killed = Run(2)
    killed.header()
    killed.model()
    killed.rows(1, 12)
    killed.save(folder + "/killed.jsonl", cut=-300)

    nulls = Run(3, columns={"model", "phase", "step", "tokens", "start_ns"})
    nulls.header(versions=None, machine=None, options=None, host=None)
    nulls.rows(1, 5)
    nulls.out.append(line(kind="end", status="interrupted", error=None, output_digest=None, routes_digest="0"))
    nulls.save(folder + "/nulls.jsonl")

    for name, seed, slots in (("small_cache", 4, 14), ("large_cache", 5, 60)):
        run = Run(seed, slots=slots)
        run.header()
        run.model()
        run.rows(1, 40)
        run.end()
        run.save(folder + "/" + name + ".jsonl")

    hostile = Run(6, layers=2, experts=4)
    hostile.header(program=HOSTILE, host={HOSTILE: HOSTILE, "threads": -1, "list": [1, [2, {"x": None}]]})
    hostile.model(name=HOSTILE)
    hostile.rows(1, 10)
    hostile.end("failed", HOSTILE)
    hostile.save(folder + "/hostile.jsonl")

    empty = Run(7)
    empty.header()
    empty.save(folder + "/header_only.jsonl")

    prefill = Run(8)
    prefill.header()
    prefill.model()
    prefill.rows(3, 0)
    prefill.end("interrupted")
    prefill.save(folder + "/prefill_only.jsonl")

    one = Run(9)
    one.header()
    one.model()
    one.rows(0, 1)
    one.end()
    one.save(folder + "/one_row.jsonl")


def write_long(rows, path):
    run = Run(10, layers=24, experts=64, top_k=4, slots=500, drive_ms=.12, dense_ms=18)
    run.header()
    run.model("made up 24x64")
    run.rows(4, rows)
    run.end()
    run.save(path)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--long":
        write_long(int(sys.argv[2]), sys.argv[3])
    elif len(sys.argv) == 2:
        write_all(sys.argv[1])
    else:
        sys.exit(__doc__)
