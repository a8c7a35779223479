# Everything from a fresh Debian 12 on: each target does the set-up that it needs, nothing twice.
#
#   make demo            plan and train a small GPT-2 on two processes, compare with one
#   make test            build, C++ tests, Python tests
#   make test-fast       the torch-free half only (seconds)
#   make test-all        make test and the long matrices
#   make test-sanitizers AddressSanitizer+UBSan and ThreadSanitizer builds of the C++ tests
#   make fuzz            looks for input that the graph readers do not bear, FUZZ_SECONDS each
#   make build           build; .venv/bin/autopart and .venv/bin/python are then ready
#   make bench           benchmarks
#   make format          clang-format and ruff
#   make goldens         takes what the reports now say as what they should (tests/data/report)

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: all deps build build-tests demo test test-fast test-all test-sanitizers fuzz bench format check-format goldens clean

PYTHON ?= python3
JOBS ?= $(shell nproc)
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autopart
export CCACHE_DIR ?= $(CACHE)/ccache
DEPS := $(CACHE)/deps-$(shell sha256sum requirements.txt | cut -c1-16)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT_PACKAGES := build-essential cmake ninja-build ccache git python3 python3-venv python3-dev \
  libabsl-dev libmetis-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev \
  libcli11-dev zlib1g-dev libxxhash-dev libyaml-cpp-dev
FORMAT_PACKAGES := clang-format clang-tidy
# One intra-op thread: results then do not depend on the machine (docs/architecture.md).
export OMP_NUM_THREADS ?= 1

all: build

# apt packages, only those that are missing; apt is not touched where all are there.
define apt_install
	@missing=$$(for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  echo "installing: $$missing"; \
	  $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; \
	fi
endef

build/.apt: Makefile
	$(call apt_install,$(APT_PACKAGES))
	@mkdir -p build && touch $@

# The packages from PyPI (torch: 5 GB) live once per requirements.txt in the cache folder...
$(DEPS)/.done: | build/.apt
	rm -rf $(DEPS) && $(PYTHON) -m venv $(DEPS)
	$(DEPS)/bin/python -m pip install -q --disable-pip-version-check -r requirements.txt
	touch $@

# ...and .venv is a small environment of this checkout that sees them and the package in python/.
.venv/.done: $(DEPS)/.done requirements.txt Makefile
	rm -rf .venv && $(DEPS)/bin/python -m venv --without-pip .venv
	site=$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	base=$$($(DEPS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	{ echo "import site; site.addsitedir('$$base')"; echo "$(CURDIR)/python"; } > $$site/autopart.pth
	for tool in torchrun pytest mypy pip; do \
	  printf '#!/bin/sh\nexec "%s" -c "import sys; from importlib.metadata import entry_points; sys.argv[0] = \\"%s\\"; sys.exit(next(iter(entry_points(group=\\"console_scripts\\", name=\\"%s\\"))).load()())" "$$@"\n' \
	    "$(CURDIR)/.venv/bin/python" $$tool $$tool > .venv/bin/$$tool && chmod +x .venv/bin/$$tool; done
	ln -sf $(DEPS)/bin/ruff .venv/bin/ruff
	ln -sf ../../build/release/runtime/cli/autopart .venv/bin/autopart
	touch $@

deps: build/.apt .venv/.done

build/release/build.ninja: | build/.apt .venv/.done
	cmake --preset release -DAUTOPART_PYTHON=$(CURDIR)/.venv/bin/python

build/no-torch/build.ninja: | build/.apt
	cmake --preset no-torch

build: build/release/build.ninja
	cmake --build build/release -j $(JOBS) --target product

build-tests: build/release/build.ninja
	cmake --build build/release -j $(JOBS)

# Both summaries stand at the end of the output, whatever failed.
test: build-tests
	@status=0; \
	ctest --test-dir build/release --output-on-failure --no-tests=error -LE slow -j $(JOBS) || status=1; \
	.venv/bin/pytest tests/python -q -m "not slow" || status=1; \
	exit $$status

test-fast: build/no-torch/build.ninja
	cmake --build build/no-torch -j $(JOBS)
	ctest --test-dir build/no-torch --output-on-failure --no-tests=error -L fast -LE slow -j $(JOBS)

goldens: build/no-torch/build.ninja
	cmake --build build/no-torch -j $(JOBS) --target report_golden_test
	AUTOPART_UPDATE_GOLDENS=1 build/no-torch/tests/pipeline/report_golden_test --gtest_brief=1
	git diff --stat -- tests/data/report

test-all: build-tests
	@status=0; \
	ctest --test-dir build/release --output-on-failure --no-tests=error -j $(JOBS) || status=1; \
	.venv/bin/pytest tests/python -q || status=1; \
	exit $$status

test-sanitizers: | build/.apt .venv/.done
	cmake --preset asan -DAUTOPART_PYTHON=$(CURDIR)/.venv/bin/python
	cmake --build build/asan -j $(JOBS)
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ctest --test-dir build/asan --output-on-failure --no-tests=error -LE slow -j $(JOBS)
	cmake --preset tsan -DAUTOPART_PYTHON=$(CURDIR)/.venv/bin/python
	cmake --build build/tsan -j $(JOBS)
	ctest --test-dir build/tsan --output-on-failure --no-tests=error -L fast -LE slow -j $(JOBS)
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 ctest --test-dir build/tsan --output-on-failure --no-tests=error -L tsan-torch -j $(JOBS)

# What a fuzzer finds stays in build/fuzz/corpus; a failing input is written to build/fuzz/failing-*.
FUZZ_SECONDS ?= 60
fuzz: | build/.apt
	$(call apt_install,clang)
	cmake --preset fuzz
	cmake --build build/fuzz -j $(JOBS) --target fuzzers
	build/fuzz/tests/partitioner/write_samples build/fuzz/corpus
	@for reader in cost_graph dnn_instance piper_instance; do \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/fuzz/tests/partitioner/fuzz_$$reader \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -dict=tests/partitioner/fuzz/json.dict \
	    -artifact_prefix=build/fuzz/failing-$$reader- build/fuzz/corpus/$$reader || exit 1; \
	done

demo: build
	.venv/bin/python examples/demo.py

bench: build-tests
	.venv/bin/python tests/benchmarks/run.py

SOURCES = $(shell git ls-files '*.cc' '*.h')
format:
	$(call apt_install,$(FORMAT_PACKAGES))
	@clang-format -i $(SOURCES)
	.venv/bin/ruff check --fix python tests examples && .venv/bin/ruff format python tests examples

check-format: .venv/.done
	$(call apt_install,$(FORMAT_PACKAGES))
	@clang-format --dry-run -Werror $(SOURCES)
	.venv/bin/ruff check python tests examples && .venv/bin/ruff format --check python tests examples

clean:
	rm -rf build .venv
