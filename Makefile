# Belljar's chores. On a fresh Debian or Ubuntu machine with cargo: `make run` to serve it, `make test` to prove it.

export PATH := $(PATH):$(HOME)/.cargo/bin
BELLJAR := target/release/belljar

.DEFAULT_GOAL := help
# Every target that says what it does.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*[#]# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup ## install what is missing, build, prepare the templates, and serve MCP on localhost:8775
	$(BELLJAR) serve

tour: setup ## a short tour in real sandboxes, with timings
	$(BELLJAR) tour

build: bootstrap ## target/release/belljar, with the guest inside
	cargo xtask guest
	cargo build --release -p belljar

setup: build ## build, then prepare the Python and Node templates
	$(BELLJAR) setup

test: ## everything, from a clean clone: format, lints, build, all tests, dependencies
	scripts/test.sh

bench: setup ## Belljar's speed beside floors and peers; BENCH=--quick, BENCH=--docs
	cargo build --release -p belljar-bench
	PYTHONDONTWRITEBYTECODE=1 python3 bench/speed/run.py $(BENCH)

guard: setup ## instructions per call of the hot paths, against recorded figures
	PYTHONDONTWRITEBYTECODE=1 scripts/with-template.sh python3 bench/guard/guard.py $(GUARD)

bench-hub: build ## what a call costs more through the hub than directly
	python3 bench/hub.py $(BENCH)

bench-browser: setup ## the browser beside three other servers, on the same pages and the same Chromium
	python3 bench/browser/bench.py $(BENCH)

bench-dashboard: setup ## how long the page takes to list and filter a thousand contexts; BENCH=--docs writes docs/dashboard.md
	tests/dashboard/run.sh bench $(BENCH)

bench-docker: setup ## what a sandbox costs on each backend, beside the engine's own commands
	python3 bench/docker.py $(BENCH)

bench-acp: setup ## what the agent adds to a model's own time
	python3 bench/acp.py $(BENCH_ACP)

load: setup ## many callers on one server for a minute, which is then killed: nothing may be lost
	python3 bench/load.py $(LOAD)

package: setup ## a tarball, a Debian package, an MCP bundle and the registry entry, in target/packages
	scripts/package.sh

chaos: setup ## break a running Belljar, round after round: CHAOS="--rounds 1000 --seed 1"
	PYTHONDONTWRITEBYTECODE=1 python3 chaos/chaos.py $(CHAOS)

fuzz: ## feed hostile bytes to all that read some: FUZZ="--seconds 600"
	cargo xtask guest
	scripts/fuzz.sh $(FUZZ)

docs: setup ## run every command of the documentation: DOCS="docs/serve.md walk"
	tests/docs/run.sh $(DOCS)

pictures: setup ## the README's pictures anew, from a real session and a real browser
	scripts/pictures.sh

escape: setup ## known ways out of a sandbox, tried in real ones; ESCAPE=--docs writes docs/security.md
	python3 escape/run.py $(ESCAPE)

neighbour: setup ## what a sandbox feels of a neighbour at full attack
	python3 bench/neighbour.py $(NEIGHBOUR)

fmt: ## format the sources
	cargo fmt --all

lint: ## lints as in CI
	cargo xtask guest
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings

bootstrap: ## install the compiler, Python and Node if they are missing
	@scripts/bootstrap.sh run

clean: ## remove what was built here; templates stay
	cargo clean
