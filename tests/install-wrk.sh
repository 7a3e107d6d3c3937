#!/bin/sh
# Installs wrk with the machine's package manager.
set -eu

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

if command -v apt-get >/dev/null; then
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk
elif command -v dnf >/dev/null; then
  as_root dnf install -y wrk
elif command -v brew >/dev/null; then
  brew install wrk
else
  echo "no apt-get, dnf or brew here: install wrk yourself, and put it on the path" >&2
  exit 1
fi
