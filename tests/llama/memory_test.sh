#!/usr/bin/env bash
# Owns: the proof that a run stays inside the memory it was told to use: a cgroup that holds the dense weights, the KV
# cache, the compute buffers, the expert cache and 64 MiB, and not one byte more, with swap off.
# Usage: memory_test.sh SLUICE MODEL CACHE_MB [N_PREDICT]
# Exit code 77 (skipped, with the reason) where this machine lets nobody make a memory cgroup.
set -euo pipefail
sluice=$1 model=$2 cache_mb=$3 n_predict=${4:-64}
unset GGML_BACKEND_PATH SLUICE_CACHE_MB
export SLUICE_NO_HISTORY=1
work=$(mktemp -d)
group=""
cleanup() {
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

run() { "$sluice" run -m "$model" -p "In the beginning" -n "$n_predict" --temp 0 -c 512 -t 2 --cache-mb "$cache_mb" "$@" </dev/null; }

run -v >"$work/free.txt" 2>"$work/free.log"
dense=$("$sluice" inspect "$model" --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["dense_bytes"])')
# llama.cpp names every buffer of its own; weights ("model buffer") are the dense bytes above.
buffers=$(python3 - "$work/free.log" <<'PY'
import re, sys
total = 0.0
for line in open(sys.argv[1], errors="replace"):
    m = re.search(r"(\S+) buffer size = +([0-9.]+) MiB", line)
    if m and m.group(1) != "model":
        total += float(m.group(2))
assert total > 0, "no buffer sizes in the log"
print(int(total * 1048576))
PY
)
limit=$(python3 -c "print((int($dense + $buffers + $cache_mb * 1048576 + 64 * 1048576) + 4095) // 4096 * 4096)")
echo "dense $dense + buffers $buffers + cache $cache_mb MiB + 64 MiB = $limit bytes"

if [ -d /sys/fs/cgroup/memory ] && mkdir "/sys/fs/cgroup/memory/sluice-test-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/memory/sluice-test-$$
    echo "$limit" >"$group/memory.limit_in_bytes"
    echo "$limit" >"$group/memory.memsw.limit_in_bytes" 2>/dev/null || true
    peak=memory.max_usage_in_bytes
elif [ -f /sys/fs/cgroup/cgroup.controllers ] && mkdir "/sys/fs/cgroup/sluice-test-$$" 2>/dev/null; then
    group=/sys/fs/cgroup/sluice-test-$$
    if ! echo "$limit" >"$group/memory.max" 2>/dev/null; then
        echo "skipped: this cgroup has no memory controller"
        exit 77
    fi
    echo 0 >"$group/memory.swap.max" 2>/dev/null || true
    peak=memory.peak
else
    echo "skipped: no permission to make a memory cgroup"
    exit 77
fi

rc=0
( echo $BASHPID >"$group/cgroup.procs" && run >"$work/tight.txt" 2>"$work/tight.log" ) || rc=$?
[ ! -r "$group/$peak" ] || echo "peak of the group: $(cat "$group/$peak") bytes"
if [ $rc -ne 0 ]; then
    tail -n 10 "$work/tight.log"
    echo "FAILED: ended with $rc in the cgroup"
    exit 1
fi
cmp "$work/free.txt" "$work/tight.txt" || { echo "FAILED: another text in the cgroup"; exit 1; }
tail -n 5 "$work/tight.log"
