# make test   everything, on a redis-server that the tests start themselves
# make check  format, lints, and every combination of features
# make doc    the documentation, without warnings
# make bench  tollgate and its peers side by side, on a redis-server started for it, in about 12
#             minutes: writes benches/RESULTS.md and benches/results.svg
# make attack floods, blocked workers and callers that go away, with figures
# make micro  the decisions and the embedded store by themselves, and allocations a request

.PHONY: test attack check doc bench micro redis wrk

# Without Redis, without Axum, without HTTP: features are additive.
FEWER_FEATURES = "" redis tls http "http redis"

test: redis
	cargo test --all-features
	for features in $(FEWER_FEATURES); do \
	  cargo test --no-default-features --features "$$features" --lib --tests || exit 1; \
	done

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	for features in $(FEWER_FEATURES) axum tonic; do \
	  cargo clippy --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps

attack: redis
	cargo test --release --all-features --test attacks -- --ignored --nocapture --test-threads 1

bench: redis wrk
	cargo run --release -p tollgate-benches --bin tollgate-benches

micro: redis
	cargo bench -p tollgate-benches
	cargo run --release -p tollgate-benches --bin allocations

# Installs a redis-server where none is found.
redis:
	@command -v "$${REDIS_SERVER:-redis-server}" >/dev/null || sh tests/install-redis.sh

# Installs wrk, the HTTP client of the benchmarks, where it is missing.
wrk:
	@command -v wrk >/dev/null || sh tests/install-wrk.sh
