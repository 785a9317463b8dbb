#!/usr/bin/env bash
# Owns: configuring and building one preset. A terminal sees the build's one moving line; otherwise nothing is said
# unless something fails, and then everything is.
#
# Usage: scripts/build.sh [--configure-only] PRESET [CMAKE_OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."
unset NINJA_STATUS

configure_only=''
if [ "${1:-}" = --configure-only ]; then configure_only=yes; shift; fi
preset=$1
shift
jobs=${SLUICE_JOBS:-$(nproc)}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'build: %s\n' "$*" >&2; }

# A build directory of another generator, compiler or checkout cannot be configured again; starting it afresh can.
if ! cmake --preset "$preset" "$@" >"$log" 2>&1 </dev/null; then
    say "configuring $preset again from nothing"
    cmake --fresh --preset "$preset" "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; say "$preset does not configure"; exit 1; }
fi

[ -z "$configure_only" ] || exit 0
say "$preset"
if [ -t 1 ]; then
    cmake --build --preset "$preset" -j "$jobs" </dev/null || { say "$preset does not build"; exit 1; }
else
    cmake --build --preset "$preset" -j "$jobs" >"$log" 2>&1 </dev/null || {
        grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Generating)' "$log" >&2 || true
        if grep -q 'Killed signal' "$log"; then say "the compiler ran out of memory: try SLUICE_JOBS=1"; fi
        say "$preset does not build"
        exit 1
    }
fi
