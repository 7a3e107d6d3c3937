# make test   everything, on a redis-server that the tests start themselves
# make check  format, lints, and every combination of features
# make lint-lua  luacheck over scripts/
# make doc    the documentation, without warnings
# make bench  tollgate and its peers side by side, on a redis-server started for it: writes
#             benches/RESULTS.md and benches/results.svg
# make attack floods, blocked workers and callers that go away, with figures
# make micro  the decisions and the embedded store by themselves, and allocations a request

.PHONY: test attack check lint-lua doc bench micro redis luacheck

# Without Redis, without Axum, without HTTP: features are additive.
FEWER_FEATURES = "" redis tls http "http redis"

test: redis
	cargo test --all-features
	for features in $(FEWER_FEATURES); do \
	  cargo test --no-default-features --features "$$features" --lib --tests || exit 1; \
	done

check: lint-lua
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	for features in $(FEWER_FEATURES) axum tonic; do \
	  cargo clippy --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done

lint-lua: luacheck
	luacheck -q scripts

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps

attack: redis
	cargo test --release --all-features --test attacks -- --ignored --nocapture --test-threads 1

bench: redis
	cargo run --release -p tollgate-benches --bin tollgate-benches

micro:
	cargo bench -p tollgate-benches
	cargo run --release -p tollgate-benches --bin allocations

# Installs luacheck where it is not found.
luacheck:
	@command -v luacheck >/dev/null || sh tests/install-luacheck.sh

# Installs a redis-server where none is found.
redis:
	@command -v "$${REDIS_SERVER:-redis-server}" >/dev/null || sh tests/install-redis.sh
