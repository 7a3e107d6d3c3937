#!/bin/sh
# Copies the server out of an official image of Redis or Valkey, to be run by tests on this machine.
# Prints the path of the copy.
set -eu
image=${1:?usage: server-of-image.sh IMAGE, such as redis:8 or valkey/valkey:8}

case "$image" in
*valkey*) name=valkey-server ;;
*) name=redis-server ;;
esac
copy=target/servers/$(echo "$image" | tr ':/' '--')
mkdir -p "$(dirname "$copy")"
container=$(docker create "$image")
trap 'docker rm "$container" >/dev/null' EXIT
docker cp --follow-link "$container:/usr/local/bin/$name" "$copy" >&2
"$copy" --version >&2
echo "$copy"
