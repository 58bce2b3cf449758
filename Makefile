# make demo   train a small network, record it, open the page
# make test   everything the checks need, from a fresh clone
# make check  format, lint, types and fast tests, while working
# make full   the long matrices too
# make bench  the tables of docs/performance.md
# make screenshots  every view as pictures, to look at

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
NPM := npm --prefix web --no-audit --no-fund
WORKERS ?= 2

.PHONY: demo test check full bench format chromium screenshots clean

demo: $(VENV)/.runtime
	$(BIN)/layerscope demo

check: $(VENV)/.dev web/node_modules/.installed
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(NPM) run -s lint
	$(NPM) run -s check
	$(NPM) run -s test
	$(BIN)/pytest -q -n $(WORKERS) -m "not slow and not browser"

# The whole suite contains the fast tests, so that only the static checks are shared with `check`.
test: $(VENV)/.dev web/node_modules/.installed chromium
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(NPM) run -s lint
	$(NPM) run -s check
	$(NPM) run -s test
	$(BIN)/pytest -n $(WORKERS)

full: $(VENV)/.dev web/node_modules/.installed chromium
	LAYERSCOPE_FULL=1 $(BIN)/pytest -n $(WORKERS)

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.all

# Every view of seven networks in both themes and two sizes, into build/screenshots; then the pictures of the documentation.
screenshots: $(VENV)/.dev chromium
	rm -rf build/screenshots
	LAYERSCOPE_SCREENSHOTS=1 $(BIN)/python -m tests.browser.screenshots build/screenshots
	LAYERSCOPE_SCREENSHOTS=1 $(BIN)/pytest -q -m browser -k "pictures or tutorial"

format: $(VENV)/.dev web/node_modules/.installed
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .
	$(NPM) run -s format

# torch comes first and alone: its pinned version is the CPU build, which a looser requirement would replace.
$(VENV)/.runtime: constraints.txt pyproject.toml build_hook.py $(wildcard src/layerscope/stats/_kernel*.[ch]) web/package.json
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) pip
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) --group dev
	$(PIP) --no-deps --upgrade --target $(VENV)/vision --group vision
	touch $@

web/node_modules/.installed: web/package.json
	$(NPM) install
	touch $@

chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -y -q chromium; \
	else echo "Chromium is missing and cannot be installed from here: the browser tests need the package 'chromium'."; fi

clean:
	rm -rf $(VENV) web/node_modules src/layerscope/server/static src/layerscope/stats/*.so build dist
