#!/usr/bin/env bash
# Runs the image with what the broker needs: its ports, io_uring, locked memory, a volume.
#
#   packaging/container/run.sh ADVERTISED_HOST [CORES] [more `tpc-broker serve` options...]
#
# ENGINE=podman takes podman. Core i answers on port 9092+i, so as many ports are published as there are cores.
set -euo pipefail
host=${1:?usage: $0 ADVERTISED_HOST [CORES] [serve options...]}
cpus=$(nproc)
cores=${2:-$((cpus < 2 ? cpus : 2))}   # more than there are CPUs needs --oversubscribe as well
shift $(($# < 2 ? $# : 2))
ports=9092
[ "$cores" -eq 1 ] || ports=9092-$((9092 + cores - 1))   # Podman refuses a range of one
exec "${ENGINE:-docker}" run --rm --init --name tpc-broker \
  --publish "$ports:$ports" \
  --volume tpc-broker-data:/var/lib/tpc-broker \
  --security-opt "seccomp=$(dirname "$0")/seccomp.json" \
  --security-opt no-new-privileges --cap-drop ALL \
  --ulimit memlock=-1 --ulimit nofile=1048576 --stop-timeout 45 \
  tpc-broker serve --data /var/lib/tpc-broker --listen 0.0.0.0:9092 --advertise "$host:9092" --cores "$cores" "$@"
