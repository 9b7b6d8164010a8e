#!/usr/bin/env bash
# Pins what the tests and the linters install, with the hashes of every file, for all platforms and CPython 3.11 and
# newer: requirements/test.txt. Run it to take newer versions, then `make lint test`.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
"$folder/bin/uv" pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-annotate \
  --custom-compile-command tools/lock_requirements.sh --extra test --extra lint --extra spark pyproject.toml \
  --output-file requirements/test.txt
