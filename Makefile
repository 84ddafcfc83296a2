# Everything a person needs: `make demo` and `make test`, each doing its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The page of a report is tested in a real browser.
HAS_CHROMIUM := { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null
AS_ROOT := $(shell test "$$(id -u)" = 0 || echo sudo)
INSTALL_CHROMIUM := { command -v apt-get >/dev/null && $(AS_ROOT) apt-get update && $(AS_ROOT) apt-get install --yes chromium; }

.PHONY: demo demo-simulator test campaign attack lint docs bench clean

demo: $(VENV)/installed
	$(BIN)/holdfast reproduce gambler n-chain frozen-lake --seeds 5 --out runs/demo
	$(BIN)/holdfast solve frozen-lake --certify --nodes 1000 --out runs/demo/certified

# A policy for a simulator, trained against adversaries and then attacked: some minutes on two cores.
demo-simulator: $(VENV)/installed
	$(BIN)/holdfast train point-gather --radius 0.2 --cost-limit 0.1 --iterations 60 --out runs/demo-simulator
	$(BIN)/holdfast stress runs/demo-simulator --radii 0.1 0.2 0.4 --episodes 5000

# One thread a process: two workers whose linear algebra waits for each other's threads are slow.
test: $(VENV)/tested
	$(MAKE) --jobs 2 --output-sync lint docs
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal

# The randomised checks at full size: hours, not minutes.
campaign: $(VENV)/tested
	HOLDFAST_CAMPAIGN=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal -m "campaign or long"

# Kills, damaged files and misbehaving simulators at full size: a day. SCALE=0.01 takes minutes.
SCALE ?= 1
attack: $(VENV)/tested
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.attack --scale $(SCALE)

lint: $(VENV)/tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, in build/site. Strict: a warning or a broken link is an error.
docs: $(VENV)/tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/tested
	$(BIN)/python benchmarks/robust_evaluation.py
	$(BIN)/python benchmarks/paper_experiments.py
	$(BIN)/python benchmarks/certified_gap.py
	$(BIN)/python benchmarks/large_models.py

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Holdfast needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/tested: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test --group lint --group docs
	@$(HAS_CHROMIUM) || $(INSTALL_CHROMIUM) || { echo "The report's tests need Chromium: install it as 'chromium', then run make again." >&2; exit 1; }
	touch $@

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
