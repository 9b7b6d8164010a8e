# make run    everything from a fresh machine to a running broker on 127.0.0.1:9092, data in ./data
# make test   the gate: every test that a change must pass, with its own set-up, in a quarter of an hour of two cores
# make test-long   what needs minutes, chance or a machine of its own, with a fresh seed; PART=crash runs a part of it
# make test-plain   the gate as on a host that refuses io_uring: the same tests, on the plain backend
# make build  the set-up without the start
# make lint   ruff, mypy, and the format of the C
# make format   puts the C into its format
# make sim    the simulators beyond the gate: all fixed seeds and RUNS=20 fresh ones; SEED=… STEPS=… repeats one run
# make sim-long   small cases without gaps, up to STATES states; then RUNS=5000 fresh seeds, failures passed over
# make bench  every bar, in about a quarter of an hour, beside the peers that this machine has; the report lands in docs/benchmarks
# make demo   a broker, a million web events, a streaming job and a Parquet archive on Spark (needs Java 17 or newer)
#
# Each step leaves a mark in .venv and is done again only when what it depends on has changed.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
NATIVE  := $(shell find native ebpf/programs -name '*.c' -o -name '*.h' -o -name '*.py')
C_FILES := $(shell find native ebpf/programs -name '*.c' -o -name '*.h')
PIP     := $(BIN)/pip install --disable-pip-version-check
INSTALL := $(PIP) --quiet --editable
LOCKED  := requirements/test.txt
export TPC_RING = on
SHOWN   := scripts/with-progress.sh
SOURCES := pyproject.toml setup.py $(wildcard packaging/man/*.1) $(NATIVE)
STATES  ?= 3000000
LISTEN  ?= 127.0.0.1:9092
DATA    ?= ./data
ARGS    ?=
TESTS   ?= tests
WORKERS ?= 3
PART    ?= long
SEED_OF_TESTS ?= fresh
RUNS    ?= 20
HOURS   ?= 8
SIM     := $(BIN)/python -m tests.simulator $(if $(STEPS),--steps $(STEPS)) $(if $(ONLY),--only $(ONLY))
EXPLORE := $(BIN)/python -m tests.raft.explore --states $(STATES)

.PHONY: run test test-plain test-long test-asan durations build lint format sim sim-long bench demo clean

run: $(BIN)/.built
	@echo "Starting on $(LISTEN) with data in $(DATA). Talk to it from another terminal, for example with kcat:"
	@echo "  echo 'hello, log' | kcat -b $(LISTEN) -t hello -P"
	@echo "  kcat -b $(LISTEN) -t hello -C -e"
	@echo "Stop it with Ctrl-C."
	@exec $(BIN)/tpc-broker serve --data $(DATA) --listen $(LISTEN) $(ARGS)

build: $(BIN)/.built

test: $(BIN)/.built-test $(BIN)/.fetched
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS) $(ARGS)

test-long: WORKERS = 2
test-long: $(BIN)/.built-test $(BIN)/.fetched-long
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-skips --part=$(PART) --seed=$(SEED_OF_TESTS) $(TESTS) $(ARGS)

test-plain: $(BIN)/.built-test $(BIN)/.fetched
	@$(BIN)/python -m tests.support.seccomp no-io_uring $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS) $(ARGS)

test-asan: PART = asan
test-asan: test-long

durations: $(BIN)/.built-test
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --write-durations $(TESTS) $(ARGS)

lint: $(BIN)/.built-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

format: $(BIN)/.built-test
	$(BIN)/clang-format -i $(C_FILES)

sim: $(BIN)/.built-test
	@$(SIM) $(if $(SEED),--seed $(SEED),--runs $(RUNS)) $(ARGS)

sim-long: RUNS = 5000
sim-long: $(BIN)/.built-test
	@$(EXPLORE) --terms 2 --batches 2 --crashes 1
	@$(EXPLORE) --terms 4 --batches 1 --crashes 1 --old 0 --new 1 --changes 2
	@$(EXPLORE) --terms 4 --batches 1 --crashes 1 --old 0 --new 1 --changes 3
	@$(EXPLORE) --terms 2 --batches 1 --crashes 1 --failures 1 --checkpoints 1 --snapshots 1
	@$(EXPLORE) --terms 2 --batches 2 --crashes 0 --failures 1
	@$(EXPLORE) --terms 3 --batches 1 --crashes 1
	@$(EXPLORE) --terms 3 --batches 2 --crashes 0
	@$(EXPLORE) --terms 3 --batches 1 --crashes 0 --old 0 1 2 --new 0 1 3 --changes 1
	@$(SIM) --runs $(RUNS) --hours $(HOURS) --go-on --children $(ARGS)

bench: $(BIN)/.built
	@$(INSTALL) '.[bench]'
	@$(BIN)/tpc bench --minutes 10 --warm-up 0.5 --seconds 1.5 --output docs/benchmarks $(ARGS)

demo: $(BIN)/.built-spark
	@command -v java >/dev/null || { echo "Spark needs Java 17 or newer (on Debian: apt-get install default-jre-headless)"; exit 1; }
	@$(BIN)/python -m tpc_broker.spark.demo $(ARGS)

$(BIN)/.system: scripts/system-packages.sh
	@scripts/system-packages.sh run
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(BIN)/.system-test: $(BIN)/.system scripts/system-packages.sh
	@scripts/system-packages.sh test
	@touch $@

$(BIN)/.system-long: $(BIN)/.system-test scripts/system-packages.sh
	@scripts/system-packages.sh long $(BIN)
	@touch $@

$(BIN)/.built: $(BIN)/.system $(SOURCES)
	@$(SHOWN) "Installing into $(VENV) and compiling two C extensions: a minute or two, this once" $(INSTALL) '.[broker]'
	@install -D -m 644 -t $(VENV)/share/man/man1 packaging/man/*.1
	@touch $@

$(BIN)/.built-test: $(BIN)/.system-test $(SOURCES) $(LOCKED)
	@$(SHOWN) "Installing into $(VENV) what the tests need, in the versions of $(LOCKED)" $(PIP) --require-hashes -r $(LOCKED)
	@$(SHOWN) "Compiling two C extensions" $(INSTALL) '.[test,lint,spark]' --no-deps --no-build-isolation
	@touch $(BIN)/.built $@

$(BIN)/.fetched: $(BIN)/.built-test tests/support/fetch.py
	@$(BIN)/python -m tests.support.fetch gate && touch $@ || true

$(BIN)/.fetched-long: $(BIN)/.system-long $(BIN)/.fetched
	@$(BIN)/python -m tests.support.fetch long && touch $@ || true

$(BIN)/.built-spark: $(BIN)/.built
	@echo "Installing Spark ..."
	@$(INSTALL) '.[spark]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info tpc_broker/_bytes.c tpc_broker/_ring.c tpc_broker/_bytes.*.so tpc_broker/_ring.*.so
