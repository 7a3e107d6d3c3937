#!/bin/sh
# Installs luacheck with the machine's package manager.
set -eu

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

if command -v apt-get >/dev/null; then
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq lua-check
elif command -v dnf >/dev/null; then
  as_root dnf install -y luarocks lua-devel gcc
  as_root luarocks install luacheck
elif command -v brew >/dev/null; then
  brew install luacheck
else
  echo "no apt-get, dnf or brew here: install luacheck yourself" >&2
  exit 1
fi
