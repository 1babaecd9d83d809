# Everything from nothing but Python and a clone: `make demo`, `make test`, `make check`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo tools test test-all check package docs format clean

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): this takes a minute or two, once."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	@touch $(READY)

demo: $(READY)  ## tunes an example, and ends with the picture
	@$(BIN)/python -m scripts.demo

# A real Prometheus for the tests of `flatout export`, taken out of Debian's package without installing it: no
# service starts, and nothing outside of this folder changes. Where that cannot be, those tests are skipped.
tools:
	@command -v prometheus promtool > /dev/null || test -x $(VENV)/tools/usr/bin/promtool || sh scripts/tools.sh $(VENV)/tools

test: $(READY) tools
	$(BIN)/python -m pytest -n auto

# With the rarer script shapes, and all fifty random kills.
test-all: $(READY) tools
	$(BIN)/python -m pytest -n auto -m ''

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.docs --check
	$(BIN)/python -m scripts.site --check

package: $(READY)  ## builds, installs into an empty environment, uses and uninstalls it
	$(BIN)/python -m scripts.packaging

docs: $(READY)  ## writes the pages that are made from the code, then build/site: all pages, to read in a browser
	$(BIN)/python -m scripts.docs
	$(BIN)/python -m scripts.site

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
