# `make demo` trains a first model, `make test` runs the tests; both install what they need in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(shell cat requirements.lock setup.py 2>/dev/null | cksum | cut -d' ' -f1)
TEST_PROCESSES ?= 2
MUTANTS ?= 60
MUTATION_MINUTES ?= 20
MUTATION_SEED ?= 0
KILLS ?= 9
UPDATES ?= 2000
FUZZ_MINUTES ?= 5
CAMPAIGN_SEED ?= 0

.PHONY: demo figures test test-all test-versions mutate campaign lint format install clean

demo: install
	$(BIN)/python -m vit_jax.main --config=configs/digits.py --workdir=runs/digits

figures: demo
	$(BIN)/python docs/figures.py

test: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist=worksteal

test-all: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist=worksteal -m ''

test-versions: install
	$(BIN)/python -m tests.versions $(VERSIONS)

mutate: install
	$(BIN)/python -m tests.mutation --mutants=$(MUTANTS) --minutes=$(MUTATION_MINUTES) --seed=$(MUTATION_SEED)

campaign: install
	$(BIN)/python -m tests.campaigns.chaos --kills=$(KILLS) --seed=$(CAMPAIGN_SEED)
	$(BIN)/python -m tests.campaigns.leaks --updates=$(UPDATES)
	$(BIN)/python -m tests.campaigns.fuzz --minutes=$(FUZZ_MINUTES) --seed=$(CAMPAIGN_SEED)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vit_jax needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV) || \
	  { echo "Could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@rm -f $(VENV)/.installed-*; touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
