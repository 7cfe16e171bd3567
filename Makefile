# Each target works as the first command on a fresh machine: .ci/setup.py makes .venv/ and installs.
# `make help` lists them.

PYTHON ?= python3
CC ?= cc
BIN := .venv/bin
WORKSPACE := examples/word2vec/ws
PYTEST_ARGS ?=
COVERED ?= tests/unit tests/integration
# Neighbours share fixtures, such as the hosts; whoever is done first takes from the others.
PYTEST = $(BIN)/python -m pytest -n 4 --dist worksteal
N ?= 1
# Set on some machines, it would have each of the thousands of processes compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

CORE := $(filter-out runtime/csrc/bindings/%,$(wildcard runtime/csrc/*/*.c))
BINDINGS := $(wildcard runtime/csrc/bindings/*.c)
C_TESTS := $(wildcard tests/c/*.c)
HEADERS := $(wildcard runtime/csrc/*/*.h tests/c/*.h)
C_PROGRAMS := $(wildcard tests/c/*/*.c bench/*.c)
C_FLAGS := -std=c11 -D_GNU_SOURCE -fno-math-errno -ffp-contract=off -Iruntime/csrc
C_WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wconversion -Werror
SANITIZE := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
SANITIZERS = $(shell $(CC) -print-file-name=libasan.so) $(shell $(CC) -print-file-name=libubsan.so)
# Lets a test make the n-th allocation fail: tests/c/harness.h.
WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc
# Both compilers where both are there; each has warnings that the other lacks.
COMPILERS := $(sort $(CC) $(shell command -v clang >/dev/null && echo clang))
ARM64_CC ?= aarch64-linux-gnu-gcc
CTEST := build/ctest-$(lastword $(subst /, ,$(CC)))
PYTHON_H = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')

.DEFAULT_GOAL := help
.PHONY: help train test faults models coverage slow hosts hosts-down kube kube-down asan lint typing ctest ctest-clang built tsan arm64 fuzz bench docs dist pictures clean setup-train dev
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  make \1: /p' Makefile

train: setup-train ## train the word2vec example with 2 pservers and 2 trainers on this machine
	$(BIN)/python examples/word2vec/prepare.py $(WORKSPACE)
	$(BIN)/pslaunch local --server_num 2 --worker_num 2 --job_workspace $(WORKSPACE) train.py
	$(BIN)/python examples/word2vec/report.py $(WORKSPACE)

test: dev ctest ## all tests that this machine can run: C under ASan and UBSan, then pytest
	$(PYTEST) $(PYTEST_ARGS)

faults: dev ## every ending, N times (default 1), each time with another seed
	@for seed in $$(seq $(N)); do echo "seed $$seed"; \
	    SOAK_STEPS=100000 $(PYTEST) -q --seed=$$seed tests/faults $(PYTEST_ARGS) || exit 1; done

models: dev ## every model of examples/recommenders on every backend; `test` has two of them there
	EVERY_MODEL=1 $(PYTEST) -q tests/integration/test_recommenders.py $(PYTEST_ARGS)

# The processes that tests start count as well, but for those on hosts, which have nothing of .venv/.
coverage: dev ## the share of program lines that tests/unit and tests/integration reach; COVERED=tests/unit for some
	@rm -rf build/coverage
	@code=0; $(BIN)/coverage run -m $(subst $(BIN)/python -m,,$(PYTEST)) $(COVERED) $(PYTEST_ARGS) || code=$$?; \
	    $(BIN)/coverage combine -q && $(BIN)/coverage report && for folder in launcher runtime; do \
	    echo "$$folder: $$($(BIN)/coverage report --format=total --include="$$folder/*") %"; done; exit $$code

slow: dev ## the table of slow tests in tests/README.md, from the durations of the last runs
	@PYTHONPATH=tests $(BIN)/python -m support.slow

hosts: N = 3
hosts: dev ## N hosts (default 3) with sshd on this machine, to try `pslaunch fabric` and `mpi`; needs root, Linux, openssh-server
	@PYTHONPATH=tests $(BIN)/python -m testbed up -- "$(N)" build/hosts

hosts-down: ## remove them, and all that is theirs
	@PYTHONPATH=tests $(PYTHON) -m testbed down build/hosts

kube: dev ## a Kubernetes cluster of two nodes on this machine, with EXTRAS=1 Kueue too; needs root, Linux, and the packages that it names
	@PYTHONPATH=tests $(BIN)/python -m testbed.kube needs build/kube
	@nice -n 19 .ci/kube
	@PYTHONPATH=tests $(BIN)/python -m testbed.kube up build/kube

kube-down: ## remove it, and all that is its own
	@PYTHONPATH=tests $(BIN)/python -m testbed.kube down build/kube

# Without what measures memory, to which the sanitizer holds on, without hosts, which know no LD_PRELOAD, and with one
# place of each training. Only the files with such tests: each process would import all others as well, slowly.
asan: dev build/asan/pslaunch/runtime/_core.abi3.so ## tests of the runtime, its C core under ASan and UBSan
	@ln -sfn "$(CURDIR)"/launcher/* "$(CURDIR)/templates" build/asan/pslaunch/
	@ln -sfn $(addprefix "$(CURDIR)"/,$(filter-out %.so,$(wildcard runtime/*))) build/asan/pslaunch/runtime/
	PYTHONPATH="$(CURDIR)/build/asan" LD_PRELOAD="$(SANITIZERS)" \
	ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_abort=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(PYTEST) -m asan -k "not memory and not furnished and not k8s and not led" $$(grep -rl mark.asan tests --include=test_*.py) $(PYTEST_ARGS)

# The import names as real folders, as in build/typing, but with a core of its own: .venv/ stays as it is.
build/asan/pslaunch/runtime/_core.abi3.so: $(CORE) $(BINDINGS) $(HEADERS) Makefile | dev
	@rm -rf build/asan && mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(SANITIZE) -shared -fPIC -DPy_LIMITED_API=0x030B0000 -I$(PYTHON_H) $(CORE) $(BINDINGS) \
	    -lm -lpthread -o $@

# What `asan` and `test` need of it, compiled by one processor: .ci/run makes it beside other work.
built: $(CTEST) build/asan/pslaunch/runtime/_core.abi3.so

# clang needs no optimizer for its warnings, gcc does.
lint: dev typing ## ruff, mypy strict, clang-format, C warnings as errors with gcc and clang
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy -p pslaunch
	$(BIN)/mypy tests $(wildcard .ci/*.py examples/*/*.py bench/*.py)
	$(BIN)/clang-format --dry-run -Werror $(CORE) $(BINDINGS) $(C_TESTS) $(C_PROGRAMS) $(HEADERS)
	@for cc in $(COMPILERS); do echo "$$cc: every C file" && \
	    printf '%s\n' $(CORE) $(C_TESTS) $(C_PROGRAMS) $(BINDINGS) | xargs -P "$$(nproc)" -I FILE $$cc \
	    $(C_FLAGS) $(C_WARNINGS) -DPy_LIMITED_API=0x030B0000 -isystem $(PYTHON_H) \
	    $$(case $$cc in *clang) echo -fsyntax-only;; *) echo -O3 -fPIC -c -o /dev/null;; esac) FILE || exit 1; done

typing: ## build/typing: a tree in which the import names are real folders, for mypy and editors
	@$(BIN)/python .ci/make_typing.py

ctest: $(CTEST) ## the tests of the C core under ASan and UBSan, without Python; CC=clang for the other compiler
	./$(CTEST)

$(CTEST): $(CORE) $(C_TESTS) $(HEADERS) Makefile | dev
	@mkdir -p build
	$(CC) $(C_FLAGS) $(SANITIZE) $(WRAP) -Wall -Wextra -Werror $(CORE) $(C_TESTS) -lm -lpthread -o $@

ctest-clang: dev # a target of its own, beside others (.ci/run)
	@$(MAKE) --no-print-directory ctest CC=clang

tsan: build/ctest-tsan ## the same tests under ThreadSanitizer: shards and trainers in threads share nothing
	./$<

build/ctest-tsan: $(CORE) $(C_TESTS) $(HEADERS) Makefile
	@mkdir -p build
	$(CC) $(C_FLAGS) -O1 -g -fsanitize=thread $(WRAP) -Wall -Wextra -Werror $(CORE) $(C_TESTS) -lm -lpthread -o $@

arm64: build/ctest-arm64 ## the same tests as arm64 code under qemu-user (tests/c/README.md)
	qemu-aarch64 ./$<

build/ctest-arm64: $(CORE) $(C_TESTS) $(HEADERS) Makefile
	@mkdir -p build
	$(ARM64_CC) $(C_FLAGS) -O3 $(WRAP) -Wall -Wextra -Werror -static $(CORE) $(C_TESTS) -lm -lpthread -o $@

fuzz: SECONDS = 60
fuzz: build/fuzz-shard ## a shard and trainers that say anything, under libFuzzer for SECONDS (default 60); needs clang
	@mkdir -p build/fuzz/corpus
	@$(PYTHON) -c 'from pathlib import Path; [Path(f"build/fuzz/corpus/{i}").write_bytes(bytes.fromhex(seed)) \
	    for i, seed in enumerate(Path("tests/c/fuzz/shard.seeds").read_text().split())]'
	nice -n 19 ./$< -max_len=512 -timeout=60 -max_total_time=$(SECONDS) -artifact_prefix=build/fuzz/ build/fuzz/corpus \
	    >build/fuzz/log 2>&1 || { tail -n 99 build/fuzz/log; exit 1; }
	@grep '^Done ' build/fuzz/log

build/fuzz-shard: tests/c/fuzz/fuzz_shard.c tests/c/fail_alloc.c $(CORE) $(HEADERS) Makefile
	@mkdir -p build
	clang $(C_FLAGS) $(SANITIZE) -fsanitize=fuzzer $(WRAP),--wrap=epoll_wait,--wrap=poll,--wrap=clock_gettime -Wall -Wextra -Werror \
	    $(filter %.c,$^) -lm -lpthread -o $@

bench: dev ## side-by-side measurements; those on hosts and pods need root; see bench/README.md
	@for what in launch agents push_pull tables cuts modes kernels ngram wide_and_deep embedding ssh mpi k8s; do $(BIN)/python bench/$$what.py || exit 1; done

docs: dev ## write the tables of docs/ anew from the code
	$(BIN)/python .ci/make_tables.py

pictures: dev ## draw docs/pictures/ anew: the live view of a recorded job, and the parts
	$(BIN)/python .ci/make_pictures.py

dist: ## dist/: the sdist and wheels for x86-64 and arm64, tried in new environments; needs root, Linux (.ci/dist)
	@nice .ci/dist

clean: ## remove everything that was built, .venv/ and the example's workspace included
	rm -rf .venv build dist .cache *.egg-info runtime/*.so $(WORKSPACE)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-train:
	@$(PYTHON) .ci/setup.py train

dev: ## .venv/ with the package and all tools
	@$(PYTHON) .ci/setup.py dev
