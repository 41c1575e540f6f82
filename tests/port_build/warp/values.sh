#!/bin/sh
# The values of the twenty kernels and of the written functions: on an NVIDIA GPU by nvcc, on AMD's through the stand-in.
#   tests/port_build/warp/values.sh > tests/port_build/warp/values_nvidia.txt   # nvcc on the PATH; ARCH=sm_90
#   tests/port_build/warp/values.sh hipcc [FLAGS] > ...    # hipcc, with the headers of `port fix` as -I FOLDER
set -e
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
[ $# -gt 0 ] || set -- nvcc "-arch=${ARCH:-sm_90}"
for name in main functions; do
  "$@" -std=c++17 -O2 "$here/$name.cu" -o "$made/$name"
  "$made/$name"
done
