#!/usr/bin/env bash
# Owns: the promise that an installed prefix works wherever it is moved, without the build tree and without the cache.
#
# Usage: install_test.sh BUILD CMAKE CXX
set -euo pipefail

build=$1 cmake=$2 cxx=$3
here=$(cd "$(dirname "$0")" && pwd)
demo=$(cd "$here/../.." && pwd)/models/demo/sluice-demo-Q4_0.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")

die() { printf 'FAILED: %s\n' "$*"; exit 1; }
step() { printf -- '- %s\n' "$*"; }

step 'install, then move'
"$cmake" --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log"; die "cmake --install"; }
prefix="$work/a place/with blanks"
mkdir -p "${prefix%/*}"
mv "$work/first" "$prefix"
for file in bin/sluice lib/libsluice.so lib/libsluice.so.0 lib/libggml-sluice.so lib/sluice/libllama.so lib/sluice/libggml.so.0 \
            libexec/sluice/llama-server libexec/sluice/llama-cli libexec/sluice/llama-bench libexec/sluice/llama-perplexity \
            libexec/sluice/llama-quantize include/sluice/sluice.h include/sluice/llama/llama.h include/sluice/llama/ggml.h \
            lib/cmake/sluice/sluiceConfig.cmake lib/cmake/sluice/sluiceConfigVersion.cmake lib/pkgconfig/sluice.pc \
            share/man/man1/sluice.1 share/bash-completion/completions/sluice share/doc/sluice/LICENSE \
            share/doc/sluice/LICENSE.llama.cpp; do
    [ -s "$prefix/$file" ] || die "$file is not installed"
done

step 'every library is found, ours inside the prefix'
# check_libraries FILE: nothing missing; llama.cpp's and ours from the prefix, the rest from the system.
check_libraries() {
    local list; list=$(env -u LD_LIBRARY_PATH ldd "$1") || die "ldd $1"
    if grep -q 'not found' <<<"$list"; then echo "$list"; die "$1 misses a library"; fi
    if grep -E '^[[:space:]]*lib(sluice|llama|ggml|mtmd)' <<<"$list" | grep -vF "=> $prefix/"; then die "$1 uses a library outside the prefix"; fi
}
while IFS= read -r file; do check_libraries "$file"; done < <(find "$prefix/bin" "$prefix/lib" "$prefix/libexec" -type f \( -name '*.so*' -o -perm -u+x \))

for file in "$prefix"/bin/* "$prefix"/lib/*.so "$prefix"/lib/sluice/*.so "$prefix"/libexec/sluice/*; do
    # shellcheck disable=SC2016
    if readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -vE 'path: \[\$ORIGIN[^:]*\]'; then die "$file looks outside the prefix"; fi
done

step 'the program and a stock tool run'
[[ "$("$prefix/bin/sluice" --version)" == "sluice $version "* ]] || die "sluice --version"
[ -n "$("$prefix/bin/sluice" --help)" ] || die "sluice --help"
"$prefix/libexec/sluice/llama-server" --version >"$work/log" 2>&1 || { cat "$work/log"; die "llama-server --version"; }
GGML_BACKEND_PATH="$prefix/lib/libggml-sluice.so" "$prefix/libexec/sluice/llama-bench" --list-devices >"$work/log" 2>&1 ||
    { cat "$work/log"; die "llama-bench with the plug-in"; }
if [ -f "$demo" ]; then
    "$prefix/bin/sluice" inspect "$demo" >"$work/log" || { cat "$work/log"; die "sluice inspect"; }
    "$prefix/bin/sluice" inspect "$demo" --json >"$work/log" || { cat "$work/log"; die "sluice inspect --json"; }
    SLUICE_NO_HISTORY=1 "$prefix/bin/sluice" run -m "$demo" --cache-mb 2 -c 128 -n 4 --temp 0 -p 'In the' >"$work/log" 2>&1 || { cat "$work/log"; die "sluice run"; }
fi

step 'the texts'
if command -v man >/dev/null; then
    warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man -E UTF-8 -l --warnings "$prefix/share/man/man1/sluice.1" 2>&1 >"$work/man")
    [ -z "$warnings" ] || { echo "$warnings"; die "the man page has faults"; }
    grep -q -- '--cache-mb' "$work/man" || die "the man page lacks the options"
fi
# shellcheck disable=SC2016
completions=$(bash --norc -euc '
    source "$1"
    COMP_WORDS=(sluice in) COMP_CWORD=1 COMPREPLY=()
    _sluice sluice in sluice
    echo "${COMPREPLY[@]}"
    COMP_WORDS=(sluice run --cache-m) COMP_CWORD=2 COMPREPLY=()
    _sluice sluice --cache-m run
    echo "${COMPREPLY[@]}"' - "$prefix/share/bash-completion/completions/sluice")
[ "$completions" = $'inspect\n--cache-mb' ] || { echo "$completions"; die "completion"; }

step 'a program that embeds us, by find_package'
# run_consumer FILE
run_consumer() {
    check_libraries "$1"
    local arguments=()
    [ -f "$demo" ] && arguments=("$demo")
    "$1" "${arguments[@]}" >"$work/log" 2>&1 || { cat "$work/log"; die "$1"; }
    [[ "$(tail -n 1 "$work/log")" == "$version with llama.cpp v0.5.0"* ]] || { cat "$work/log"; die "$1 says something else"; }
}
{ "$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" &&
  "$cmake" --build "$work/consumer"; } >"$work/log" 2>&1 || { cat "$work/log"; die "the consumer does not build with find_package"; }
run_consumer "$work/consumer/consumer"

step 'moved again, the same by pkg-config'         # which cannot tell blanks inside a path from blanks between options
mv "$prefix" "$work/second"
prefix=$work/second
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
[ "$(pkg-config --modversion sluice)" = "$version" ] || die "pkg-config --modversion"
declare -a flags
eval "flags=($(pkg-config --cflags --libs sluice))"
"$cxx" -std=c++17 "$here/consumer/main.cpp" "${flags[@]}" -o "$work/by-pkg-config" || die "the consumer does not build with pkg-config"
run_consumer "$work/by-pkg-config"
echo passed
