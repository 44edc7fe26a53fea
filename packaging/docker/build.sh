#!/usr/bin/env bash
# Builds the image of `belljar serve` from target/release/belljar.
#
#   packaging/docker/build.sh [OPTIONS OF docker build]        e.g. --build-arg BASE=debian:trixie-slim -t belljar:edge
#
# BELLJAR names another binary, DOCKER another command (podman).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binary=${BELLJAR:-$here/../../target/release/belljar}
[ -x "$binary" ] || { echo "there is no $binary: make build" >&2 && exit 1; }
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$context/Dockerfile"
cp "$binary" "$context/belljar"
# shellcheck disable=SC2086
${DOCKER:-docker} build -t belljar "$@" "$context"
