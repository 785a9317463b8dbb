#!/usr/bin/env bash
# Owns: everything that Sluice needs and this repository does not contain -- Debian packages and llama.cpp.
# Keeps: idempotence. Each step checks whether its result is already there, works in a temporary place and publishes it
# with one rename or one stamp file, so an interrupted run is simply run again.
#
# Usage: scripts/setup.sh [--print-build-dir] [--packages-only] [--llama-only]
#   SLUICE_CACHE_DIR          where llama.cpp is kept (default: ${XDG_CACHE_HOME:-~/.cache}/sluice)
#   SLUICE_LLAMA_CPP_SOURCE   use this llama.cpp checkout (same version) instead of fetching one
#   SLUICE_JOBS               parallel compile jobs (default: all cores)
set -euo pipefail

LLAMA_VERSION=0.5.0
LLAMA_COMMIT=de3ff815ea7d559ee917f063901b8986f038abc6
CARRIER=node-llama-cpp            # an npm package that ships the llama.cpp source as a git bundle
CARRIER_VERSION=3.22.1
CARRIER_SHA512='bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw=='
NEED_DISK_MB=3000                 # source 0.5 GB, web UI modules 0.6 GB, build 0.6 GB, rounded up

PACKAGES=(build-essential cmake ninja-build pkg-config git ca-certificates nodejs npm python3 curl
          liburing-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libssl-dev
          libgtest-dev libgmock-dev libbenchmark-dev clang clang-format clang-tidy)

# AMX is left out: GCC 12, Debian 12's compiler, drops the stores that fill ggml's tile configuration, and the result dies
# of an illegal instruction in the first matrix product on any processor that has AMX.
NO_AMX='-U__AMX_TILE__ -U__AMX_INT8__ -U__AMX_BF16__'
LLAMA_OPTIONS=("-DCMAKE_C_FLAGS=$NO_AMX" "-DCMAKE_CXX_FLAGS=$NO_AMX"
               -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF
               -DLLAMA_BUILD_IS_DEV=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
               -DLLAMA_BUILD_UI=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=ON)
LLAMA_TARGETS=(llama-cli llama-server llama-bench llama-perplexity llama-quantize llama-completion llama-gguf-split)

say()  { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

cache_root=${SLUICE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
root=$cache_root/llama.cpp-v$LLAMA_VERSION

# The build is native, so its key covers the processor's features and the compiler as well as our options: a home
# directory that moves to another machine gets a build of its own instead of an illegal instruction.
build_key() {
    {
        printf '%s\n' "${LLAMA_OPTIONS[@]}" "${SLUICE_LLAMA_CPP_SOURCE:-$LLAMA_COMMIT}"
        grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
        ${CXX:-c++} -dumpfullversion -dumpversion 2>/dev/null || true
    } | sha256sum | cut -c1-12
}

install_packages() {
    local missing=() p
    for p in "${PACKAGES[@]}"; do
        # npm and node may come from elsewhere than Debian; what counts is that they run.
        case $p in
            nodejs) command -v node >/dev/null && continue ;;
            npm)    command -v npm  >/dev/null && continue ;;
        esac
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    if [ ${#missing[@]} -eq 0 ]; then say "Debian packages: all there"; return; fi
    command -v apt-get >/dev/null || fail "these packages are missing and there is no apt-get to install them: ${missing[*]}"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "these packages are missing; install them as root, then run this again: ${missing[*]}"
        sudo=(sudo)
    fi
    say "installing Debian packages: ${missing[*]}"
    local log; log=$(mktemp)
    "${sudo[@]}" dpkg --configure -a >"$log" 2>&1 || true      # a run that was killed in the middle of apt
    if ! { "${sudo[@]}" apt-get update -qq &&
           "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
           >>"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" >&2
        if grep -qi 'no space left' "$log"; then fail "the disk is full: free some space and run this again"; fi
        fail "apt-get could not install the packages above (offline? its own words are shown)"
    fi
    rm -f "$log"
}

check_disk() {
    mkdir -p "$root" 2>/dev/null || fail "cannot create $root (read-only or full disk?); set SLUICE_CACHE_DIR to a writable place"
    local free; free=$(df -Pm "$root" | awk 'NR==2 {print $4}')
    [ "$free" -ge "$NEED_DISK_MB" ] ||
        fail "only $free MB free at $root but building llama.cpp needs $NEED_DISK_MB MB: free some space or set SLUICE_CACHE_DIR"
}

fetch_source() {
    local src=$root/source
    [ -f "$src/.sluice-verified" ] && return
    local tmp; tmp=$(mktemp -d "$root/fetch.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$tmp'" EXIT
    say "fetching llama.cpp v$LLAMA_VERSION (36 MB, inside $CARRIER@$CARRIER_VERSION)"
    (cd "$tmp" && npm pack "$CARRIER@$CARRIER_VERSION" --silent --ignore-scripts >/dev/null 2>npm.log) || {
        tail -n 3 "$tmp/npm.log" >&2
        fail "could not download $CARRIER@$CARRIER_VERSION from the npm registry: are you offline?"; }
    local got; got=$(openssl dgst -sha512 -binary "$tmp/$CARRIER-$CARRIER_VERSION.tgz" | base64 -w0)
    [ "$got" = "$CARRIER_SHA512" ] || fail "the download does not match its published sha512 (got $got): not used"
    tar -xzf "$tmp/$CARRIER-$CARRIER_VERSION.tgz" -C "$tmp" package/llama/gitRelease.bundle ||
        fail "could not unpack the download into $tmp (disk full?)"
    git -c advice.detachedHead=false clone -q "$tmp/package/llama/gitRelease.bundle" "$tmp/source" 2>"$tmp/git.log" ||
        { cat "$tmp/git.log" >&2; fail "could not unpack the llama.cpp source (disk full?)"; }
    [ "$(git -C "$tmp/source" rev-parse HEAD)" = "$LLAMA_COMMIT" ] || fail "the bundle holds another commit than $LLAMA_COMMIT"
    touch "$tmp/source/.sluice-verified"
    rm -rf "$src"
    mv "$tmp/source" "$src"
    rm -rf "$tmp"
    trap - EXIT
}

build_llama() {
    local src=$1 build=$2
    say "building llama.cpp v$LLAMA_VERSION once for this user into $build (about 9 minutes on 2 cores)"
    local log=$build.log gen=(-G Ninja)
    rm -f "$build/.sluice-complete"
    cmake -S "$src" -B "$build" "${gen[@]}" "${LLAMA_OPTIONS[@]}" >"$log" 2>&1 ||
        { tail -n 20 "$log" >&2; fail "llama.cpp does not configure; the whole log is $log"; }
    local progress=cat
    [ -t 2 ] || progress=quiet
    if ! cmake --build "$build" --target "${LLAMA_TARGETS[@]}" -j "${SLUICE_JOBS:-$(nproc)}" 2>&1 | tee -a "$log" | show_progress "$progress"; then
        tail -n 20 "$log" >&2
        if grep -q 'No space left' "$log"; then fail "the disk is full: free some space and run this again"; fi
        fail "llama.cpp does not build; the whole log is $log"
    fi
    # The UI build falls back in silence to an empty page when npm fails; a server without its UI is not what was asked for.
    grep -q 'UI: npm build succeeded\|UI: npm output up-to-date' "$log" ||
        { grep 'UI:' "$log" | tail -n 5 >&2; fail "llama.cpp's web UI did not build with npm (offline?); run this again when online"; }
    touch "$build/.sluice-complete"
    say "llama.cpp is ready"
}

# A terminal sees one moving line, a pipe a line about every tenth of the work.
show_progress() {
    awk -v mode="$1" '
        match($0, /^\[[0-9]+\/[0-9]+\]/) {
            split(substr($0, 2, RLENGTH - 2), n, "/")
            if (mode == "cat") { printf "\rsetup: llama.cpp %d of %d", n[1], n[2] > "/dev/stderr"; shown = 1 }
            else if (int(10 * n[1] / n[2]) > step) { step = int(10 * n[1] / n[2]); printf "setup: llama.cpp %d of %d\n", n[1], n[2] > "/dev/stderr" }
            fflush("/dev/stderr")
        }
        END { if (shown) printf "\n" > "/dev/stderr" }'
}

mode=${1:-all}
build=$root/build-$(build_key)
case $mode in
    --print-build-dir) echo "$build"; exit 0 ;;
    --packages-only)   install_packages; exit 0 ;;
    all|--llama-only)  ;;
    *) fail "unknown option $mode (there are --print-build-dir, --packages-only and --llama-only)" ;;
esac
[ "$mode" = --llama-only ] || install_packages
build=$root/build-$(build_key)                   # again: the compiler may only be there now
if [ ! -f "$build/.sluice-complete" ]; then
    check_disk
    exec 9>"$root/lock"
    if ! flock -n 9; then say "another set-up is running; waiting for it"; flock 9; fi
    if [ ! -f "$build/.sluice-complete" ]; then
        if [ -n "${SLUICE_LLAMA_CPP_SOURCE:-}" ]; then
            [ -f "$SLUICE_LLAMA_CPP_SOURCE/include/llama.h" ] || fail "SLUICE_LLAMA_CPP_SOURCE=$SLUICE_LLAMA_CPP_SOURCE is not a llama.cpp checkout"
            ln -sfn "$(realpath "$SLUICE_LLAMA_CPP_SOURCE")" "$build.source"
        else
            fetch_source
            ln -sfn "$root/source" "$build.source"
        fi
        build_llama "$(realpath "$build.source")" "$build"
    fi
fi
echo "$build"
