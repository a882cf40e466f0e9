# shellcheck shell=bash
# Sourced by examples/run, tests/run and bench/run: installs packages, chooses the build folder, builds. Prints each step.
# Requires `root`, the top of the source tree, and `name`, the name of the script in messages.

say() { printf '%s: %s\n' "$name" "$*"; }

# Prints the verdict and exits with CODE. Usage: finish CODE [REASON]
finish() {
  if [[ $1 -eq 0 ]]; then
    echo "verdict: pass"
  else
    echo "verdict: FAIL (${2:-exit code $1})"
  fi
  exit "$1"
}

# Ends with a verdict unless an option has a value. Usage: need_value OPTION VALUE...
need_value() { [[ -n ${2:-} ]] || { say "$1 needs a value (see --help)"; finish 2 "usage"; }; }

# Packages of Debian 12 that building the library and the command requires.
build_packages=(g++ cmake ninja-build pkg-config libboost-dev libboost-filesystem-dev nlohmann-json3-dev libxxhash-dev libcereal-dev libcli11-dev)

# Installs missing Debian packages as root or with `sudo -n`. Otherwise prints the command and exits.
need_packages() {
  command -v dpkg-query >/dev/null || {
    say "this is not a Debian system: assuming that the equivalents of these packages are installed: $*"
    return 0
  }
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  local command=(apt-get install -y --no-install-recommends "${missing[@]}") as=()
  if [[ $(id -u) -ne 0 ]]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as=(sudo -n)
    else
      say "packages are missing and this user cannot install them. As root, run:"
      echo "  ${command[*]}"
      finish 3 "missing packages: ${missing[*]}"
    fi
  fi
  say "installing ${missing[*]}"
  as+=(env DEBIAN_FRONTEND=noninteractive)
  local log
  log=$(mktemp)
  # The package lists may be missing or outdated: update them once and try again.
  if "${as[@]}" "${command[@]}" >"$log" 2>&1 || { "${as[@]}" apt-get update >>"$log" 2>&1 && "${as[@]}" "${command[@]}" >>"$log" 2>&1; }; then
    rm -f "$log"
    return 0
  fi
  tail -n 20 "$log"
  rm -f "$log"
  finish 3 "cannot install ${missing[*]}"
}

# Prints the build folder of a preset: build/PRESET, or a folder of this user if the tree is not writable.
build_folder() {
  local folder=$root/build/$1
  if mkdir -p "$folder" 2>/dev/null && [[ -w $folder && -O $folder ]]; then
    echo "$folder"
    return 0
  fi
  local top
  top=${TMPDIR:-/tmp}/crossrank-build-$(id -u)
  mkdir -m 700 "$top" 2>/dev/null || [[ -d $top && -O $top && ! -L $top ]] || {
    echo "$name: neither $folder nor $top is writable" >&2
    return 1
  }
  folder=$top/$(printf '%s' "$root" | cksum | cut -d ' ' -f 1)-$1
  mkdir -p "$folder" && echo "$folder"
}

# Prints the number of parallel jobs: one per available processor, but at most one per 1.5 GB of free memory.
jobs() {
  local processors memory
  processors=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1500000)}' /proc/meminfo)
  if ((memory < 1)); then memory=1; fi
  echo $((processors < memory ? processors : memory))
}

# Removes the cache of FOLDER if it refers to another source folder, because the tree was copied or moved.
forget_moved_cache() {
  [[ -f $1/CMakeCache.txt ]] || return 0
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$1/CMakeCache.txt" || rm -rf "${1:?}/CMakeCache.txt" "$1/CMakeFiles"
}

# Configures PRESET in FOLDER; passes further arguments to cmake. Prints the summary, or all output on failure.
configure() {
  local preset=$1 folder=$2 log=$2/configure.log
  shift 2
  forget_moved_cache "$folder"
  say "configuring preset $preset in $folder"
  if ! (cd "$root" && cmake --preset "$preset" -B "$folder" "$@") >"$log" 2>&1; then
    cat "$log"
    finish 4 "configuration failed"
  fi
  sed -n '/^-- crossrank /,/^-- Configuring/ { /Configuring/d; s/^-- //; p }' "$log"
}

# Builds the given targets in FOLDER. Prints the compiler's output only on failure.
build() {
  local folder=$1 log=$1/build.log count
  shift
  count=$(jobs)
  say "building with $count jobs: $*"
  local start=$SECONDS
  if ! "${runner[@]}" cmake --build "$folder" -j "$count" --target "$@" >"$log" 2>&1; then
    { grep -vE '^\[[0-9]+/[0-9]+\]' "$log" || true; } | tail -n 60
    finish 5 "build failed"
  fi
  say "built in $((SECONDS - start)) s"
}

# Prefix of build and test commands; some presets need one.
runner=(env)

# Prints the names of crossrank's shared memory objects of this user.
shared_memory() { find /dev/shm -maxdepth 1 -name '*crossrank*' -user "$(id -u)" -printf '%f\n' 2>/dev/null | sort; }
