#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that are missing: `run` for building and running, `test` for the tests as well,
# `long` for the long tier too. Asks for nothing when all are there. Uses sudo when not root; where it may not, prints the
# exact command. `long BIN` puts Debian's Prometheus into the folder BIN, where there is none.
set -euo pipefail

optional=()  # what tests are skipped without; a failure to install it breaks nothing
packages=(python3-venv python3-dev gcc libc6-dev liburing-dev libssl-dev)
for_tests=(kcat default-jre-headless maven e2fsprogs git openssl iproute2 clang libbpf1)
case "${1:-run}" in
  run)  ;;
  test) packages+=("${for_tests[@]}"); optional=(libseccomp2) ;;
  long) packages+=("${for_tests[@]}"); optional=(libseccomp2 faketime nftables golang-go g++ npm) ;;
  *)    echo "usage: $0 [run | test | long [BIN]]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not Debian or Ubuntu; if the build fails, install the equivalents of: ${packages[*]}" >&2
  exit 0
fi

present() {
  case "$1" in
    default-jre-headless) command -v java >/dev/null ;;
    maven)                command -v mvn >/dev/null ;;
    kcat)                 command -v kcat >/dev/null ;;
    clang|openssl|git|npm) command -v "$1" >/dev/null ;;
    iproute2)             command -v ip >/dev/null ;;
    golang-go)            command -v go >/dev/null ;;
    *)                    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' ;;
  esac
}

# Only the program of the package (19 MB to fetch, 50 MB): installed it brings 300 MB along and starts a service.
fetch_prometheus() {
  local bin=${1:-} folder
  if [ -z "$bin" ] || [ -x "$bin/prometheus" ] || command -v prometheus >/dev/null; then return; fi
  folder=$(mktemp -d)
  if (cd "$folder" && timeout 90 apt-get download -qq prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb |
      tar -x ./usr/bin/prometheus) >/dev/null 2>&1; then
    mv "$folder/usr/bin/prometheus" "$bin/"
  else
    echo "Not fetched, so its tests are skipped: prometheus" >&2
  fi
  rm -rf "$folder"
}

missing=() wanted=()
for package in "${packages[@]}"; do
  present "$package" || missing+=("$package")
done
for package in "${optional[@]}"; do
  present "$package" || wanted+=("$package")
done
if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
  fetch_prometheus "${2:-}"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # sudo is used when it needs no password, or when somebody is there to type it.
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
  elif [ ${#missing[@]} -eq 0 ]; then
    fetch_prometheus "${2:-}"
    exit 0
  else
    echo "Missing system packages. Run this as root, then try again:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends)
if [ ${#missing[@]} -gt 0 ]; then
  echo "Installing system packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" "${install[@]}" "${missing[@]}" >/dev/null
fi
if [ ${#wanted[@]} -gt 0 ]; then
  echo "Installing system packages, for tests that are skipped without: ${wanted[*]}"
  { "${as_root[@]}" timeout 30 apt-get update -qq && "${as_root[@]}" timeout 90 "${install[@]}" "${wanted[@]}" >/dev/null; } ||
    echo "Not installed: ${wanted[*]}" >&2
fi
fetch_prometheus "${2:-}"
