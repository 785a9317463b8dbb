# Thin: every target is one script or one CMake command. `make` lists them.
PREFIX ?= /usr/local
JOBS := $(or $(SLUICE_JOBS),$(shell nproc))
DEMO_MODEL := models/demo/sluice-demo-Q4_0.gguf
CTEST := ctest --test-dir build --output-on-failure --no-tests=error -j $(JOBS)
# clang does not know every warning that the compile commands, made for GCC, name.
TIDY := run-clang-tidy -quiet -p build -j $(JOBS) -extra-arg=-Wno-unknown-warning-option

.PHONY: help setup build build-tests demo check check-full race bench-micro bench-count bench-count-update \
        install tidy format format-check clean

help:
	@echo 'make demo          set up, build, and run the demo model with a cache far smaller than its experts'
	@echo 'make check         set up, build, and run the tests'
	@echo 'make check-full    the same with the long tests (within an hour); WHOLE=1: with those of a day, too'
	@echo 'make bench-micro   times of the hot pieces; bench-count counts their instructions (see bench/micro/README.md)'
	@echo 'make race          race against stock llama.cpp with little memory (root; a quarter of an hour; bench/race/README.md)'
	@echo 'make build         set up and build: build/sluice and build/libggml-sluice.so'
	@echo 'make setup         install the Debian packages and build llama.cpp, once per user'
	@echo 'make install       install what was built under PREFIX (now $(PREFIX))'
	@echo 'make tidy          clang-tidy over src'
	@echo 'make format        clang-format over the sources; format-check only looks'
	@echo 'make clean         remove the build directories (llama.cpp stays in the cache)'

setup:
	@scripts/setup.sh >/dev/null

build: setup
	@scripts/build.sh release

# All experts together are about 25 MiB; the cache here is 6.
demo: build
	@build/sluice run -m $(DEMO_MODEL) --cache-mb 6 -c 512 -n 96 --temp 0 -p 'The Lord is my shepherd'

# What only the tests need has to be there before CMake looks for it.
build-tests: setup
	@scripts/setup.sh --test-packages
	@scripts/build.sh release

check: build-tests
	@$(CTEST) -LE '^full$$'

# WHOLE=1 adds the whole product of bit identity, which takes most of a day.
check-full: build-tests
	@$(CTEST) $(if $(WHOLE),,-LE '^whole$$')

bench-micro: build-tests
	@build/bench/micro/micro_bench

COUNT = bench/micro/count.py build/bench/micro/micro_count
bench-count: build-tests
	@$(COUNT)

bench-count-update: build-tests
	@$(COUNT) --update

# RACE adds options of bench/race/race.py: RACE='--rounds 4'.
race: build
	@bench/race/mid.sh $(RACE)

install:
	@test -x build/sluice || { echo 'nothing is built yet: run make build first' >&2; exit 1; }
	@cmake --install build --prefix '$(PREFIX)' >/dev/null
	@echo 'installed: $(PREFIX)/bin/sluice'

# Checks are configured in .clang-tidy. Takes minutes; FILES='src/cache/.*' looks at less.
FILES ?= src/.*\.cpp
tidy: setup
	@scripts/setup.sh --dev-packages
	@scripts/build.sh --configure-only release
	@$(TIDY) '$(CURDIR)/$(FILES)'

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.h')
format:
	@scripts/setup.sh --dev-packages
	@clang-format -i $(SOURCES)

format-check:
	@scripts/setup.sh --dev-packages
	@clang-format --dry-run -Werror $(SOURCES)

clean:
	rm -rf build build-debug build-asan build-asan-core build-tsan build-tsan-core build-fuzz
