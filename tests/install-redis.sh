#!/bin/sh
# Installs redis-server with the machine's package manager.
set -eu

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

if command -v apt-get >/dev/null; then
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server
elif command -v dnf >/dev/null; then
  as_root dnf install -y redis || as_root dnf install -y valkey-compat-redis
elif command -v brew >/dev/null; then
  brew install redis
else
  echo "no apt-get, dnf or brew here: install redis-server yourself, or set REDIS_SERVER to one" >&2
  exit 1
fi
