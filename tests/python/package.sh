#!/bin/bash
# Builds the wheel of the Python package against the libraries of a build folder, installs it in an environment of its own,
# and runs the tests of this folder there. Usage: package.sh SOURCE_TREE BUILD_FOLDER
# Exits with 77 and a reason where Python's headers or the build tools from PyPI cannot be had. CROSSRANK_TEST_PYTHON names a
# Python whose packages (torch, ModelOpt) the tests may use as well. It may be that of a virtual environment.
set -euo pipefail
source_tree=$(readlink -f "$1")
build=$(readlink -f "$2")
here=$build/tests/python
python=${CROSSRANK_TEST_PYTHON:-/usr/bin/python3}
unset PYTHONPATH

skip() { echo "skipped: $*"; exit 77; }
! grep -q '^CROSSRANK_SANITIZE:STRING=.' "$build/CMakeCache.txt" || skip "Python cannot load a library with a sanitizer"
[[ -x $python ]] || skip "$python is not installed (python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "$python is older than 3.11"
[[ -e $("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] || skip "Python.h is missing (python3-dev)"
"$python" -c 'import venv, ensurepip' 2>/dev/null || skip "venv is missing (python3-venv)"

# The environment with the build tools is kept for later runs.
tools=$here/tools
if ! "$tools/bin/python" -c 'import nanobind, scikit_build_core' 2>/dev/null; then
  rm -rf "$tools"
  "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install -q 'scikit-build-core>=1.1' 'nanobind>=3.1,<4' >"$here/tools.log" 2>&1 ||
    skip "the build tools cannot be installed from PyPI: $(tail -n 1 "$here/tools.log")"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
wheel=$("$source_tree/python/wheel.sh" "$tools/bin/python" "$build" "$scratch/wheels")
ls -l "$wheel"

# Each Python has an environment of its own. The packages of a virtual environment come in by their path: an environment
# that is made from one sees only those of the interpreter below it.
user=$here/user-$(printf '%s' "$python" | cksum | cut -d ' ' -f 1)
if ! "$user/bin/python" -c 'import numpy, pytest, nanobind_backend' 2>/dev/null; then  # none, or not whole
  rm -rf "$user"
  "$python" -m venv --system-site-packages "$user"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sep="\n")' \
    >"$("$user/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/chosen_python.pth"
  "$user/bin/python" -m pip install -q pytest numpy 'nanobind-backend>=1.0' >"$here/user.log" 2>&1 ||
    skip "pytest and numpy cannot be installed from PyPI: $(tail -n 1 "$here/user.log")"
  "$user/bin/python" -m pip install -q --only-binary :all: mpi4py >>"$here/user.log" 2>&1 || true  # its tests skip without it
fi
"$user/bin/python" -m pip install -q --force-reinstall --no-deps "$wheel"
# The wheel must not find the libraries of the build folder.
cd "$scratch"
"$user/bin/crossrank" --version
export CROSSRANK_TEST_CUDA=$build/emulated_gpu/libcuda.so.1
"$user/bin/python" -m pytest -q -rs -p no:cacheprovider "$source_tree/tests/python"
