#!/bin/bash
# Installs the build into a separate folder and builds programs against that copy, as users do.
# Usage: consumer.sh install|documents|cmake|mpi|torch|pkg-config|moved|readme|examples|embedding
# Environment: SOURCE, BUILD, PROJECT, PREFIX, COMPILER, FLAGS, WITH_MPI (yes or no: whether the build has MPI)
# and TORCH (the folder with LibTorch's include and lib).
set -euo pipefail

runs() { # PROGRAM: runs it with the installed library and checks its output
  local said
  said=$("$@")
  [[ $said == "crossrank "*" joined 32 bytes" ]] || { echo "unexpected output: $said"; exit 1; }
}

# use_package PREFIX: lets pkg-config find that copy, and programs its library.
use_package() {
  local config
  config=$(find "$1" -name crossrank.pc)
  [[ -n $config ]] || { echo "no crossrank.pc below $1"; exit 1; }
  export PKG_CONFIG_PATH=${config%/*}
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir crossrank)
  export LD_LIBRARY_PATH
}

compile() { # SOURCE PROGRAM
  local flags
  eval "flags=($FLAGS $(pkg-config --cflags --libs crossrank))"  # pkg-config quotes spaces as a shell needs them
  "$COMPILER" -std=c++20 "$1" -o "$2" "${flags[@]}"
}

build_with_pkg_config() { # PREFIX
  local folder
  use_package "$1"
  folder=$(mktemp -d "$1-pc.XXXXXX")
  compile "$PROJECT/main.cpp" "$folder/consumer"
  runs "$folder/consumer"
  rm -rf "$folder"
}

# refuses_component COMPONENT TEXT: find_package says why it has no such component.
refuses_component() {
  local folder
  folder=$(mktemp -d "$PREFIX-component.XXXXXX")
  printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(component LANGUAGES CXX)' \
    "find_package(crossrank REQUIRED COMPONENTS $1)" >"$folder/CMakeLists.txt"
  if cmake -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_CXX_COMPILER="$COMPILER" >"$folder/log" 2>&1; then
    echo "the component $1 was found"
    exit 1
  fi
  grep -q "$2" "$folder/log" || { echo "the error does not say: $2"; cat "$folder/log"; exit 1; }
  rm -rf "$folder"
}

# Builds the first program of the README and compares its output with the README.
readme() {
  local folder four one flags
  use_package "$PREFIX"
  folder=$(mktemp -d "$PREFIX-readme.XXXXXX")
  awk '/^```/ { if (on) exit; on = /^```cpp/; next } on' "$SOURCE/README.md" >"$folder/hello.cpp"
  compile "$folder/hello.cpp" "$folder/hello"
  eval "flags=($(pkg-config --cflags crossrank))"
  if "$COMPILER" -std=c++17 -fsyntax-only "$folder/hello.cpp" "${flags[@]}" 2>"$folder/errors"; then
    echo "C++17 is not enough, but there was no error"
    exit 1
  fi
  head -n 3 "$folder/errors" | grep -q "needs C++20" || { echo "the first error does not name C++20"; head -n 3 "$folder/errors"; exit 1; }
  four=$("$PREFIX/bin/crossrank" run -n 4 -- "$folder/hello")
  one=$("$folder/hello")
  rm -rf "$folder"
  [[ $four == "[0] 96 bytes" && $one == "24 bytes" ]] || { echo "unexpected output of four ranks: $four; of one rank: $one"; exit 1; }
}

# Checks that every document named in the README, the licences of all included libraries, and the examples are installed.
documents() {
  local folder=$PREFIX/share/doc/crossrank name missing=0
  [[ -e $folder/README.md ]] || { echo "no README.md in $folder"; exit 1; }
  while read -r name; do
    [[ -e $folder/$name || -e $folder/${name##*/} ]] || { echo "the README names $name, which is not installed"; missing=1; }
  done < <(grep -oE '[A-Za-z0-9_/.-]+\.md' "$folder/README.md" | sort -u; printf '%s\n' LICENSE THIRD_PARTY_LICENSES)
  for name in CLI11 nlohmann/json xxHash cereal; do
    grep -q "^$name" "$folder/THIRD_PARTY_LICENSES" || { echo "the licence of $name is missing"; missing=1; }
  done
  while read -r name; do
    [[ -e $folder/$name ]] || { echo "$name was not installed"; missing=1; }
  done < <(cd "$SOURCE" && find examples -type f -not -name run)
  # Links into the source are for people who change the library.
  while read -r name; do
    while read -r link; do
      case $link in
        *://* | ../include/* | ../lib/* | *../tests/*) continue ;;
      esac
      [[ -e $(dirname "$name")/$link ]] || { echo "$name links $link, which is not installed"; missing=1; }
    done < <(grep -oE '\]\([A-Za-z0-9_/-]*\.[A-Za-z0-9_./-]+' "$name" | sed 's/^](//')
  done < <(find "$folder/README.md" "$folder/docs" -name '*.md' -not -name ARCHITECTURE.md)
  exit "$missing"
}

# Builds the installed examples against the installed library, from a copy with another name.
examples() {
  local said folder
  folder=$(mktemp -d "$PREFIX-copies.XXXXXX")
  cp -r "$PREFIX/share/doc/crossrank/examples" "$folder/programs"
  use_package "$PREFIX"
  compile "$folder/programs/fp8.cpp" "$folder/fp8"
  [[ $("$folder/fp8") == *"8 of 8 are 1"* ]] || { echo "unexpected output of fp8"; exit 1; }
  cmake -S "$folder/programs" -B "$PREFIX-examples" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS"
  cmake --build "$PREFIX-examples" --target hello
  rm -rf "$folder"
  said=$("$PREFIX/bin/crossrank" run -n 2 -- "$PREFIX-examples/hello")
  [[ $said == "[0] 48 bytes" ]] || { echo "unexpected output: $said"; exit 1; }
}

# Builds the separate project of chapter 9 of the guide with the commands of that chapter.
embedding() {
  local said
  cmake -S "$PREFIX/share/doc/crossrank/examples/embedding" -B "$PREFIX-embedding" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS"
  cmake --build "$PREFIX-embedding"
  said=$("$PREFIX-embedding/embedding" 3)
  [[ $said == "3 threads, ranks sum up to 3" ]] || { echo "unexpected output: $said"; exit 1; }
}

case $1 in
  install)
    rm -rf "$PREFIX" "$PREFIX"-*
    cmake --install "$BUILD" --prefix "$PREFIX"
    "$PREFIX/bin/crossrank" --version
    for part in include/crossrank/error.hpp bin/crossrank share/man/man1/crossrank-run.1 \
      share/bash-completion/completions/crossrank share/zsh/site-functions/_crossrank; do
      [[ -e $PREFIX/$part ]] || { echo "$part was not installed"; exit 1; }
    done
    # A build without MPI must not install mpi.hpp.
    found=no
    [[ ! -e $PREFIX/include/crossrank/mpi.hpp ]] || found=yes
    [[ $found == "$WITH_MPI" ]] || { echo "mpi.hpp installed: $found, built: $WITH_MPI"; exit 1; }
    ;;
  cmake)
    cmake -S "$PROJECT" -B "$PREFIX-cmake" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS"
    cmake --build "$PREFIX-cmake"
    runs "$PREFIX-cmake/consumer"
    refuses_component bogus "no component bogus"
    ;;
  mpi)
    cmake -S "$PROJECT" -B "$PREFIX-mpi" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS" -DWITH_MPI=ON
    cmake --build "$PREFIX-mpi"
    said=$(bash "$SOURCE/tests/collectives/mpi/run_mpi.sh" 2 "$PREFIX-mpi/owner")
    [[ $said == "crossrank "*" joined 6" ]] || { echo "unexpected output: $said"; exit 1; }
    ;;
  torch)
    cmake -S "$PROJECT" -B "$PREFIX-torch" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS" \
      -DWITH_TORCH=ON -DTorch_ROOT="$TORCH"
    cmake --build "$PREFIX-torch" --target trainer
    runs "$PREFIX-torch/trainer"
    ;;
  pkg-config) build_with_pkg_config "$PREFIX" ;;
  moved)
    rm -rf "$PREFIX-moved"
    cp -a "$PREFIX" "$PREFIX-moved"
    build_with_pkg_config "$PREFIX-moved"
    rm -rf "$PREFIX-moved"
    ;;
  readme) readme ;;
  documents) documents ;;
  examples) examples ;;
  embedding) embedding ;;
  *) echo "unknown step $1"; exit 2 ;;
esac
