#!/usr/bin/env bash
# Owns: everything that Sluice needs and this repository does not contain -- Debian packages, llama.cpp, and the library
# that draws the plots of reports.
# Keeps: idempotence. Each step checks whether its result is already there, works in a temporary place and publishes it
# with one rename or one stamp file, so an interrupted run is simply run again.
#
# Usage: scripts/setup.sh [--print-build-dir | --print-echarts-dir | --print-arm64-dir | --packages-only |
#                          --test-packages | --dev-packages | --llama-only | --echarts-only | --arm64]
#   SLUICE_CACHE_DIR          where llama.cpp and ECharts are kept (default: ${XDG_CACHE_HOME:-~/.cache}/sluice)
#   SLUICE_LLAMA_CPP_SOURCE   use this llama.cpp checkout (same version) instead of fetching one
#   SLUICE_JOBS               parallel compile jobs (default: all cores)
# Standard output is the build directory of llama.cpp and nothing else; everything said goes to standard error.
set -euo pipefail

LLAMA_VERSION=0.5.0
GGML_VERSION=0.25.1
LLAMA_COMMIT=de3ff815ea7d559ee917f063901b8986f038abc6
CARRIER=node-llama-cpp            # an npm package that ships the llama.cpp source as a git bundle
CARRIER_VERSION=3.22.1
CARRIER_SHA512='bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw=='
NEED_DISK_MB=3000                 # source 0.5 GB, web UI modules 0.8 GB, build 0.6 GB, npm's own cache, rounded up

# llama.cpp's web UI needs a node of ^20.19, ^22.13 or >=24 (strictly: it refuses others); Debian 12 has 18. Where the
# node found is too old, its npm fetches a newer node and npm, which only the UI build sees.
NODE_VERSION=22.20.0
NODE_SHA512_x64='CWyKqAkT1fUBr1IDD/JhDAYpUrBraNmSM9ndREbhAp14QmgBqq8CmgWHITSK1YXzJj+hWTEC1+F6gOgVFLIaSg=='
NODE_SHA512_arm64='eVexvODYds5ya11f+1D0r33WVf6BGvoSvofyVYQFMFMytblCCwlgJStpOb4IdomSnfVQWLAt0tNgYE5iXxSRuA=='
NPM_VERSION=10.9.8
NPM_SHA512='fYwb6ODSmHkqrJQQaCxY3M2lPf/mpgC7ik0HSzzIwG5CGtabRp4bNqikatvCoT42b5INQSqudVH0R7yVmC9hVg=='

# Apache ECharts goes into the program as it is, with its licences (see cmake/SluiceEcharts.cmake).
ECHARTS_VERSION=6.1.0
ECHARTS_SHA512='q0yaFPggC9FUdsWH4blavRWFmxdrIodbkoKNAjJudAI6CA9gNPxHtV2RcZNEepZVlk4yvBYkOkbk6HIVpIyHZA=='
ZRENDER_VERSION=6.1.0             # inside ECharts' one file; only its licence is missing there
ZRENDER_SHA512='oEGMDB6pOP2S6OwRR4PdVv610zrjnA3Bh+JnSG12fYJlBKjtNAoEb5fSUoCOOINlH96I2fU38/A2UpRKs67xYQ=='

# "package" or "package=command": where the command runs, it does not matter which package it came from.
PACKAGES=(build-essential cmake=cmake ninja-build=ninja pkg-config=pkg-config git=git nodejs=node npm=npm ca-certificates
          libssl-dev                                                        # llama.cpp: https in llama-server
          libfmt-dev liburing-dev libxxhash-dev libisal-dev libeigen3-dev nlohmann-json3-dev libcli11-dev libgtest-dev python3=python3)   # python3: tests only
TEST_PACKAGES=(valgrind=valgrind libbenchmark-dev                           # make check: bench/micro,
               chromium=chromium fonts-dejavu-core)                         # reports in a browser, with letters
DEV_PACKAGES=(clang clang-format clang-tidy shellcheck)                     # make tidy, make format, fuzzing
ARM64_PACKAGES=(g++-aarch64-linux-gnu=aarch64-linux-gnu-g++ qemu-user-static=qemu-aarch64-static)
ARM64_LIBRARIES=(libfmt-dev libfmt9 liburing-dev liburing2 libxxhash-dev libxxhash0 libisal-dev libisal2 libgtest-dev
                 libgmock-dev)                                              # the preset arm64-core; 1 MB

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
set -E
trap 'fail "unexpected: \"$BASH_COMMAND\" failed (line $LINENO of $0)"' ERR       # nothing fails without a word

DISK_FULL='the disk is full: free some space and run this again (or set SLUICE_CACHE_DIR to a place with room)'

home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
cache_root=${SLUICE_CACHE_DIR:-${XDG_CACHE_HOME:-$home/.cache}/sluice}
root=$cache_root/llama.cpp-v$LLAMA_VERSION
echarts=$cache_root/echarts-$ECHARTS_VERSION
arm64=$cache_root/arm64-libraries
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE NINJA_STATUS     # of a git hook or a person's shell; they are not about llama.cpp

# The build is native, so its key covers the processor's features and the compiler as well as our options: a home
# directory that moves to another machine gets a build of its own instead of an illegal instruction.
build_key() {
    {
        printf '%s\n' "${LLAMA_OPTIONS[@]}" "${SLUICE_LLAMA_CPP_SOURCE:-$LLAMA_COMMIT}"
        grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
        ${CXX:-c++} -dumpfullversion -dumpversion 2>/dev/null || true
    } | sha256sum | cut -c1-12
}

# install_packages PACKAGE...
install_packages() {
    local missing=() names=() entry there
    for entry in "$@"; do
        case $entry in
            *=*) command -v "${entry#*=}" >/dev/null || missing+=("${entry%%=*}") ;;
            *)   names+=("$entry") ;;
        esac
    done
    # shellcheck disable=SC2016
    there=" $(dpkg-query -W -f '${Package}:${db:Status-Status} ' "${names[@]}" 2>/dev/null || true) "
    for entry in "${names[@]}"; do
        case $there in *" $entry:installed "*) ;; *) missing+=("$entry") ;; esac
    done
    if [ ${#missing[@]} -eq 0 ]; then say "Debian packages: all there"; return; fi

    command -v apt-get >/dev/null ||
        fail "there is no apt-get here: install the equivalents of ${missing[*]} by hand, then run scripts/setup.sh --llama-only"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "there is no sudo here: as root, run apt-get install ${missing[*]} -- then run this again"
        sudo -n true 2>/dev/null || sudo -v ||
            fail "sudo does not let this user install packages: as root, run apt-get install ${missing[*]} -- then run this again"
        sudo=(sudo)
    fi
    say "installing Debian packages: ${missing[*]}"
    local log; log=$(mktemp) || fail "$DISK_FULL"
    # A run that was killed inside apt leaves packages half configured; a third party's broken list need not stop us.
    "${sudo[@]}" dpkg --configure -a >"$log" 2>&1 </dev/null || true
    "${sudo[@]}" apt-get update -qq -o DPkg::Lock::Timeout=300 >>"$log" 2>&1 </dev/null || true
    if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o DPkg::Lock::Timeout=300 "${missing[@]}" >>"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" >&2
        if grep -qiE 'no space left|enough free space' "$log"; then rm -f "$log"; fail "$DISK_FULL"; fi
        if grep -qiE 'temporary failure resolving|could not resolve|could not connect|network is unreachable|unable to connect' "$log"; then
            rm -f "$log"
            fail "apt-get could not download packages: this machine seems to be offline; run this again when it is online"
        fi
        rm -f "$log"
        fail "apt-get could not install ${missing[*]}; its own words are above"
    fi
    rm -f "$log"
}

make_root() {
    mkdir -p "$root" 2>/dev/null || fail "cannot create $root (read-only or full disk?); set SLUICE_CACHE_DIR to a writable place"
}

# One set-up at a time.
take_lock() {
    [ -z "${locked:-}" ] || return 0
    make_root
    exec 9>"$root/lock"
    if ! flock -n 9; then say "another set-up is running; waiting for it"; flock 9; fi
    locked=yes
}

check_disk() {
    make_root
    local free there
    free=$(df -Pm "$root" | awk 'NR == 2 {print $4}')
    # What an interrupted run already put there does not have to fit again.
    there=$({ du -smc "$root/source" "$1" 2>/dev/null || true; } | awk 'END {print $1 + 0}')
    [ $((free + there)) -ge "$NEED_DISK_MB" ] ||
        fail "only $free MB free at $root but building llama.cpp needs $((NEED_DISK_MB - there)) MB: free some space or set SLUICE_CACHE_DIR"
}

# Scratch space is under $root, so that publishing is a rename. It goes when it was used, or with this script, or, after
# a kill, with the next run.
scratch() {
    [ -n "${scratch_dir:-}" ] && return
    scratch_dir=$(mktemp -d "$root/fetch.XXXXXX") || fail "$DISK_FULL"
    trap drop_scratch EXIT
}
drop_scratch() { rm -rf "$root"/fetch.*; scratch_dir=''; }         # only where we hold the lock

explain_npm() {                                             # LOG WHAT
    if grep -qE 'ENOSPC|no space left' "$1"; then fail "$DISK_FULL"; fi
    tail -n 5 "$1" >&2
    if grep -qE 'ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|network' "$1"; then
        fail "could not $2: the npm registry cannot be reached (offline?); run this again when it can"
    fi
    fail "could not $2; npm's own words are above"
}

# npm_fetch NAME VERSION SHA512: the package's tarball, verified, as $scratch_dir/NAME-VERSION.tgz
npm_fetch() {
    command -v npm >/dev/null || fail "npm is missing: install it (Debian: apt-get install npm), then run this again"
    scratch
    local file=$scratch_dir/$1-$2.tgz got want
    (cd "$scratch_dir" && npm pack "$1@$2" --loglevel=error --ignore-scripts >/dev/null 2>npm.log </dev/null) ||
        explain_npm "$scratch_dir/npm.log" "download $1@$2"
    want=$(printf %s "$3" | base64 -d | od -An -v -tx1 | tr -d ' \n')
    got=$(sha512sum "$file" | cut -d' ' -f1)
    [ "$got" = "$want" ] || fail "the download $1@$2 does not match its published sha512 (it has $got): not used"
}

fetch_source() {
    local src=$root/source
    [ -f "$src/.sluice-verified" ] && return
    say "fetching llama.cpp v$LLAMA_VERSION (36 MB, inside $CARRIER@$CARRIER_VERSION)"
    npm_fetch "$CARRIER" "$CARRIER_VERSION" "$CARRIER_SHA512"
    tar -xzf "$scratch_dir/$CARRIER-$CARRIER_VERSION.tgz" -C "$scratch_dir" package/llama/gitRelease.bundle ||
        fail "could not unpack the download into $scratch_dir (disk full?)"
    git -c advice.detachedHead=false clone -q "$scratch_dir/package/llama/gitRelease.bundle" "$scratch_dir/source" \
        2>"$scratch_dir/git.log" </dev/null ||
        { cat "$scratch_dir/git.log" >&2; fail "could not unpack the llama.cpp source (disk full?)"; }
    [ "$(git -C "$scratch_dir/source" rev-parse HEAD)" = "$LLAMA_COMMIT" ] ||
        fail "the bundle holds another commit than $LLAMA_COMMIT: not used"
    touch "$scratch_dir/source/.sluice-verified"
    rm -rf "$src"
    mv "$scratch_dir/source" "$src"
}

# Only what the program carries: the library in one file, and the texts that its licences want to go with it.
fetch_echarts() {
    [ -f "$echarts/licenses/LICENSE-zrender" ] && return
    take_lock
    [ -f "$echarts/licenses/LICENSE-zrender" ] && return
    drop_scratch
    say "fetching Apache ECharts $ECHARTS_VERSION for the plots of sluice report (12 MB)"
    npm_fetch echarts "$ECHARTS_VERSION" "$ECHARTS_SHA512"
    npm_fetch zrender "$ZRENDER_VERSION" "$ZRENDER_SHA512"
    mkdir "$scratch_dir/echarts"
    { tar -xzf "$scratch_dir/echarts-$ECHARTS_VERSION.tgz" -C "$scratch_dir/echarts" --strip-components=1 \
          package/dist/echarts.min.js package/LICENSE package/NOTICE package/licenses/LICENSE-d3 &&
      tar -xzOf "$scratch_dir/zrender-$ZRENDER_VERSION.tgz" package/LICENSE >"$scratch_dir/echarts/licenses/LICENSE-zrender"; } ||
        fail "could not unpack ECharts into $scratch_dir (disk full?)"
    rm -rf "$echarts"
    mv "$scratch_dir/echarts" "$echarts"
    drop_scratch
}

# The libraries of an arm64 machine, unpacked beside those of this one: Debian cannot install both of every one (ISA-L),
# and apt would take the wrong one away. apt keeps its lists for that in scratch space and touches nothing of the system's.
fetch_arm64() {
    [ -f "$arm64/.sluice-complete" ] && return
    take_lock
    [ -f "$arm64/.sluice-complete" ] && return
    drop_scratch
    scratch
    say "fetching Debian's libraries for arm64 (1 MB, and 20 MB of lists)"
    mkdir -p "$scratch_dir/apt/lists/partial" "$scratch_dir/apt/archives/partial" "$scratch_dir/arm64" || fail "$DISK_FULL"
    local options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
                   -o Acquire::Languages=none -o Dir::State="$scratch_dir/apt" -o Dir::State::status=/dev/null
                   -o Dir::Cache="$scratch_dir/apt") package
    if ! { apt-get "${options[@]}" update &&
           (cd "$scratch_dir/apt" && apt-get "${options[@]}" download "${ARM64_LIBRARIES[@]}"); } >"$scratch_dir/apt.log" 2>&1 </dev/null; then
        tail -n 5 "$scratch_dir/apt.log" >&2
        fail "apt-get could not download Debian's libraries for arm64; its own words are above"
    fi
    for package in "$scratch_dir"/apt/*.deb; do
        dpkg-deb -x "$package" "$scratch_dir/arm64" || fail "could not unpack $package (disk full?)"
    done
    touch "$scratch_dir/arm64/.sluice-complete"
    rm -rf "$arm64"
    mv "$scratch_dir/arm64" "$arm64"
    drop_scratch
}

node_is_new_enough() {
    local version major minor
    version=$(node --version 2>/dev/null) || return 1
    IFS=. read -r major minor _ <<<"${version#v}"
    [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] || return 1
    ((major == 20 && minor >= 19 || major == 22 && minor >= 13 || major >= 24))
}

# Puts a node that the web UI accepts first on PATH.
ensure_node() {
    if node_is_new_enough && command -v npm >/dev/null; then return; fi
    local dir=$cache_root/node-v$NODE_VERSION arch sha512
    if [ ! -x "$dir/bin/npm" ]; then
        case $(uname -m) in
            x86_64)  arch=x64 sha512=$NODE_SHA512_x64 ;;
            aarch64) arch=arm64 sha512=$NODE_SHA512_arm64 ;;
            *) fail "llama.cpp's web UI needs node 20.19 or newer, which has to be installed by hand on $(uname -m)" ;;
        esac
        say "fetching node $NODE_VERSION for llama.cpp's web UI (52 MB; the node here is $(node --version 2>/dev/null || echo missing), too old)"
        npm_fetch "node-linux-$arch" "$NODE_VERSION" "$sha512"
        npm_fetch npm "$NPM_VERSION" "$NPM_SHA512"
        local new=$scratch_dir/node
        mkdir -p "$new/lib/node_modules/npm"
        { tar -xzf "$scratch_dir/node-linux-$arch-$NODE_VERSION.tgz" -C "$new" --strip-components=1 package/bin/node package/LICENSE &&
          tar -xzf "$scratch_dir/npm-$NPM_VERSION.tgz" -C "$new/lib/node_modules/npm" --strip-components=1; } ||
            fail "could not unpack node into $new (disk full?)"
        chmod +x "$new/bin/node" "$new/lib/node_modules/npm/bin/npm-cli.js"
        ln -s ../lib/node_modules/npm/bin/npm-cli.js "$new/bin/npm"
        rm -rf "$dir"
        mv "$new" "$dir"
    fi
    export PATH=$dir/bin:$PATH
}

check_source() {
    local version
    [ -f "$1/include/llama.h" ] || fail "SLUICE_LLAMA_CPP_SOURCE=$1 is not a llama.cpp checkout"
    version=$(sed -n -E 's/^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)\).*/\2/p' "$1/ggml/CMakeLists.txt" | head -n 3 | paste -sd .)
    [ "$version" = "$GGML_VERSION" ] ||
        fail "SLUICE_LLAMA_CPP_SOURCE=$1 has ggml ${version:-of an unknown version}; llama.cpp v$LLAMA_VERSION (ggml $GGML_VERSION) is needed"
}

build_llama() {
    local src=$1 build=$2 log=$2.log mode=pipe
    [ -t 2 ] && mode=terminal
    rm -f "$build/.sluice-complete"
    # The UI needs the registry in the middle of the build; being offline is better said now.
    if [ ! -f "$build/tools/ui/dist/index.html" ]; then
        npm view "npm@$NPM_VERSION" version --loglevel=error >/dev/null 2>"$log" </dev/null ||
            explain_npm "$log" "fetch what llama.cpp's web UI is built from"
    fi
    say "building llama.cpp v$LLAMA_VERSION once for this user into $build (about 9 minutes on 2 cores)"
    cmake -S "$src" -B "$build" -G Ninja "${LLAMA_OPTIONS[@]}" >"$log" 2>&1 </dev/null ||
        { tail -n 20 "$log" >&2; fail "llama.cpp does not configure; the whole log is $log"; }
    if ! cmake --build "$build" --target "${LLAMA_TARGETS[@]}" -j "${SLUICE_JOBS:-$(nproc)}" 2>&1 </dev/null |
            tee -a "$log" | show_progress "$mode"; then
        tail -n 20 "$log" >&2
        if grep -qiE 'no space left|ENOSPC' "$log"; then fail "$DISK_FULL"; fi
        if grep -q 'Killed signal' "$log"; then fail "the compiler ran out of memory: run this again with SLUICE_JOBS=1"; fi
        fail "llama.cpp does not build; the whole log is $log"
    fi
    # The UI build falls back in silence to an empty page when npm fails; a server without its UI is not what was asked for.
    grep -q 'UI: npm build succeeded\|UI: npm output up-to-date' "$log" || {
        grep -A 5 'UI: npm.*failed' "$log" | tail -n 12 >&2
        if grep -q ENOSPC "$log"; then fail "$DISK_FULL"; fi
        fail "llama.cpp's web UI did not build with npm (offline?); run this again when online -- only the UI is left to do"; }
    touch "$build/.sluice-complete"
    say "llama.cpp is ready"
}

# A terminal sees one moving line, a pipe a line about every tenth of the work.
show_progress() {
    awk -v mode="$1" '
        match($0, /^\[[0-9]+\/[0-9]+\]/) {
            split(substr($0, 2, RLENGTH - 2), n, "/")
            if (mode == "terminal") { printf "\rsetup: llama.cpp %d of %d", n[1], n[2] > "/dev/stderr"; shown = 1 }
            else if (int(10 * n[1] / n[2]) > step) { step = int(10 * n[1] / n[2]); printf "setup: llama.cpp %d of %d\n", n[1], n[2] > "/dev/stderr" }
            fflush("/dev/stderr")
        }
        END { if (shown) printf "\n" > "/dev/stderr" }'
}

[ $# -le 1 ] || fail "one option at most"
mode=${1:-all}
case $mode in
    --print-build-dir) echo "$root/build-$(build_key)"; exit 0 ;;
    --print-echarts-dir) echo "$echarts"; exit 0 ;;
    --print-arm64-dir) echo "$arm64"; exit 0 ;;
    --packages-only)   install_packages "${PACKAGES[@]}"; exit 0 ;;
    --test-packages)   install_packages "${TEST_PACKAGES[@]}"; exit 0 ;;
    --dev-packages)    install_packages "${DEV_PACKAGES[@]}"; exit 0 ;;
    --echarts-only)    fetch_echarts; echo "$echarts"; exit 0 ;;
    --arm64)           install_packages "${ARM64_PACKAGES[@]}"; fetch_arm64; fetch_echarts; echo "$arm64"; exit 0 ;;
    all)               install_packages "${PACKAGES[@]}" ;;
    --llama-only)      ;;                                   # and ECharts: all but the packages
    *) fail "unknown option $mode (there are --print-build-dir, --print-echarts-dir, --print-arm64-dir, --packages-only, --test-packages, --dev-packages, --llama-only, --echarts-only and --arm64)" ;;
esac

build=$root/build-$(build_key)
[ -f "$build/.sluice-complete" ] || check_disk "$build"
fetch_echarts
if [ ! -f "$build/.sluice-complete" ]; then
    take_lock
    if [ ! -f "$build/.sluice-complete" ]; then
        drop_scratch
        if [ -n "${SLUICE_LLAMA_CPP_SOURCE:-}" ]; then
            check_source "$SLUICE_LLAMA_CPP_SOURCE"
            ln -sfn "$(realpath "$SLUICE_LLAMA_CPP_SOURCE")" "$build.source"
        else
            fetch_source
            ln -sfn "$root/source" "$build.source"
        fi
        ensure_node
        drop_scratch
        build_llama "$(realpath "$build.source")" "$build"
    fi
fi
echo "$build"
