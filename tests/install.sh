#!/bin/sh
# Installs redis-server, wrk, nginx, haproxy, chromium, python3, python3-venv, npm, prometheus, luacheck, valgrind, strace, perf or objdump with the machine's package manager: sh install.sh TOOL
set -eu
tool=$1

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt() {
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"
}

if command -v apt-get >/dev/null; then
  case $tool in
    luacheck) apt lua-check ;;
    perf) apt linux-perf || apt linux-tools-generic ;;
    objdump) apt binutils ;;
    *) apt "$tool" ;;
  esac
elif command -v dnf >/dev/null; then
  case $tool in
    redis-server) as_root dnf install -y redis || as_root dnf install -y valkey-compat-redis ;;
    python3-venv) as_root dnf install -y python3 ;;
    prometheus) as_root dnf install -y golang-github-prometheus ;;
    objdump) as_root dnf install -y binutils ;;
    luacheck) as_root dnf install -y luarocks lua-devel gcc && as_root luarocks install luacheck ;;
    *) as_root dnf install -y "$tool" ;;
  esac
elif command -v brew >/dev/null; then
  case $tool in
    redis-server) brew install redis ;;
    python3 | python3-venv) brew install python ;;
    *) brew install "$tool" ;;
  esac
else
  echo "no apt-get, dnf or brew here: install $tool yourself, and put it on the path" >&2
  exit 1
fi
