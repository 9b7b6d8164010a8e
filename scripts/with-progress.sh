#!/usr/bin/env bash
# `with-progress.sh WHAT COMMAND…`: runs a command that says nothing for long, and tells every ten seconds that it still
# does. Its own output is shown when it fails.
set -uo pipefail
what=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
began=$SECONDS
echo "$what ..."
"$@" >"$output" 2>&1 &
pid=$!
while kill -0 "$pid" 2>/dev/null; do
  for _ in {1..50}; do
    kill -0 "$pid" 2>/dev/null || break 2
    sleep 0.2
  done
  echo "$what: $((SECONDS - began)) s so far ..."
done
wait "$pid" && code=0 || code=$?
if [ "$code" -ne 0 ]; then
  cat "$output" >&2
  echo "$what: failed with exit code $code" >&2
fi
exit "$code"
