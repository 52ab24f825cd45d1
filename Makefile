# Commands for users and developers. `make demo` needs Rust; `make build` and `make test` need Python 3.11 or later too.

PYTHON ?= python3
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/release/sluicenet
VENV := .venv
FUZZ_SECONDS ?= 120
WHEELS := $(TARGET)/wheels

.DEFAULT_GOAL := help
.PHONY: help rust build command wheel demo test test-long models fuzz lint lint-python docs extending bench clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r n t; do printf '  make %-10s %s\n' "$$n" "$$t"; done

rust:
	@CARGO="$(CARGO)" scripts/tools.sh rust

build: command wheel ## The command and the CNI plugin in target/release, and the Python package in .venv

# Naming the Python package builds nothing of it, but makes cargo choose the dependencies' features as for the wheel: what
# the two share is then built once.
command: rust
	$(CARGO) build --release --locked -p sluicenet-cli -p sluicenet-cni -p sluicenet-python --bin sluicenet --bin sluicenet-cni

# The extras are for dataframes, plots and progress; the versions are those the tests run with.
wheel: rust $(VENV)/.ready
	rm -f $(WHEELS)/sluicenet-*.whl
	$(VENV)/bin/maturin build --release --locked --quiet -m python/Cargo.toml -i $(VENV)/bin/python --out $(WHEELS)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(WHEELS)/sluicenet-*.whl
	@$(VENV)/bin/python -c 'import sluicenet; print(f"sluicenet {sluicenet.__version__} is in $(VENV)")'

$(VENV)/.ready: scripts/venv.sh scripts/tools.sh python/requirements-test.txt python/pyproject.toml
	scripts/venv.sh $(PYTHON) $(VENV)
	@touch $@

demo: command ## 256 servers, lossy and lossless, three TCPs, about half a minute: results in out/demo
	$(BIN) demo -o out/demo $(DEMO_FLAGS)

test: wheel ## Every test: Rust, then Python in .venv
	$(VENV)/bin/python scripts/test.py

test-long: wheel ## Long tests of the real world, before an issue is closed: rates and gigabytes, on a machine that does nothing else
	$(VENV)/bin/python scripts/test.py --long

models: rust ## Every order in which the two ends of a ring can run, by a model checker
	RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked --target-dir $(TARGET)/loom -p sluicenet-ring --test loom

fuzz: rust ## All fuzz targets for FUZZ_SECONDS together; needs a nightly Rust and cargo-fuzz
	@set -e; targets=$$($(CARGO) +nightly fuzz list); each=$$(($(FUZZ_SECONDS) / $$(echo $$targets | wc -w))); \
	for target in $$targets; do \
		echo "fuzzing $$target for $$each s"; \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$$each -verbosity=0 -print_final_stats=1; \
	done

lint: lint-python ## Formatting, clippy, ruff, mypy
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

lint-python: $(VENV)/.ready
	cd python && $(abspath $(VENV))/bin/ruff check . && $(abspath $(VENV))/bin/ruff format --check .
	$(VENV)/bin/ruff check --config python/pyproject.toml scripts bench/instructions bench/stages.py bench/threads
	$(VENV)/bin/ruff format --config python/pyproject.toml --check scripts bench/instructions bench/stages.py bench/threads
	cd python && $(abspath $(VENV))/bin/mypy --no-incremental sluicenet tests

docs: rust ## The reference pages from the code: docs/scenario.md, docs/records.md, docs/switch.md
	SLUICENET_DOCS=write $(CARGO) test --locked -p sluicenet-cli --test command docs

extending: rust ## What docs/extending.md and its chapters say, done in a copy and tested
	$(PYTHON) scripts/extending.py

bench: command ## How fast the simulator itself is: long TCP flows on fat trees
	bench/run $(BIN)

clean: ## Everything that was built or run
	$(CARGO) clean
	rm -rf $(VENV) out
