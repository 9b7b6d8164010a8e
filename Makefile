# make run    everything from a fresh machine to a running broker on 127.0.0.1:9092, data in ./data
# make test   the tests, with their own set-up
# make build  the set-up without the start
# make lint   ruff, mypy
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := $(shell find native -name '*.[ch]' -o -name '*.py' 2>/dev/null)
ARGS   ?=
TESTS  ?= tests

.PHONY: run test build lint clean

run: $(BIN)/.built
	@echo "Starting on 127.0.0.1:9092 with data in ./data. Talk to it with, for example:"
	@echo "  echo 'hello, log' | kcat -b 127.0.0.1:9092 -t hello -P"
	@echo "  kcat -b 127.0.0.1:9092 -t hello -C -e"
	@echo "Stop it with Ctrl-C."
	@exec $(BIN)/tpc-broker serve --data ./data --listen 127.0.0.1:9092 $(ARGS)

build: $(BIN)/.built

test: $(BIN)/.built-test
	$(BIN)/python -m pytest $(TESTS) $(ARGS)

lint: $(BIN)/.built-test
	$(BIN)/ruff check .
	$(BIN)/mypy

$(BIN)/.system: scripts/system-packages.sh
	@scripts/system-packages.sh run
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(BIN)/.built: $(BIN)/.system pyproject.toml setup.py $(NATIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(BIN)/.system-test: $(BIN)/.system scripts/system-packages.sh
	@scripts/system-packages.sh test
	@touch $@

$(BIN)/.built-test: $(BIN)/.system-test $(BIN)/.built
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info tpc_broker/_bytes.* tpc_broker/_ring.*
