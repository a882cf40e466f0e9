#!/bin/bash
# Checks that includes follow the layers, one way. Usage: include_direction.sh SOURCE_TREE
set -euo pipefail
cd "$1"
problems=0
problem() { echo "$1"; problems=$((problems + 1)); }

# Which layers a layer may include besides itself. A backend never includes another one.
declare -A may=(
  [core]=""
  [platform]="core"
  [codec]="core platform"
  [spi]="core"
  [node]="core platform codec spi"
  [collectives]="core platform codec spi node fake shm"
  [fake]="core platform codec spi node collectives"
  [shm]="core platform codec spi node collectives"
  [message]="core platform codec spi node collectives"
  [composite]="core platform codec spi node collectives"
  [mpi]="core spi collectives"
  [workspace]="core platform codec spi node collectives"
  [tools]="core platform codec spi node collectives workspace"
  [examples]="public"
  [bench]="core platform codec spi node collectives workspace examples all"
)
# The layer whose promise a public header is.
declare -A header_layer=(
  [concat]=core [device]=core [dtype]=core [element_range]=core [error]=core [export]=core [json]=core [log]=core [process_group]=core [rank_span]=core [reduce_op]=core
  [shape]=core
  [spi/storage]=core [state]=core [tensor]=core [tensor_dict]=core [version]=core
  [safetensors]=codec [serialize]=codec
  [statistics]=node
  [spi/transport]=spi [spi/wire]=collectives [spi/plugin]=spi [mpi]=mpi
  [collective]=collectives [collective_elements]=collectives [group]=collectives [helpers]=collectives [mesh]=collectives [message_queue]=collectives
  [objects]=collectives
  [checkpoint]=workspace [nfs_workspace]=workspace [parallel]=workspace [shared_memory_workspace]=workspace [workspace]=workspace
  [workspace_options]=workspace [collective_range]=workspace [range_options]=workspace
  [crossrank]=all
)

layer_of() {
  case $1 in
    lib/*/*) local rest=${1#lib/}; echo "${rest%%/*}" ;;
    collectives/fake/* | collectives/shm/* | collectives/message/* | collectives/composite/* | collectives/mpi/*) local rest=${1#collectives/}; echo "${rest%%/*}" ;;
    include/crossrank/*)
      local header=${1#include/crossrank/}
      echo "${header_layer[${header%.hpp}]:-unknown}"
      ;;
    *) echo "${1%%/*}" ;;
  esac
}

check() { # FILE INCLUDED_PATH
  local from to
  from=$(layer_of "$1")
  to=$(layer_of "$2")
  if [[ $from == unknown || $to == unknown ]]; then
    problem "$1 includes $2: tests/structure/include_direction.sh does not know the layer of one of them"
    return
  fi
  [[ $from != "$to" && $from != all ]] || return 0
  if [[ ${may[$from]:-} == public ]]; then
    [[ $2 == include/crossrank/* ]] || problem "$1 includes $2: examples use public headers only"
  elif [[ " ${may[$from]:-} " != *" $to "* ]]; then
    problem "$1 includes $2: $from must not know $to"
  fi
}

while IFS=: read -r file line; do
  case $line in
    *'"'*) path=${line#*\"}; path=${path%\"*}; [[ $path == */* ]] || path=$(dirname "$file")/$path ;;
    *'<crossrank/'*) path=include/${line#*<}; path=${path%>*} ;;
    *) continue ;;
  esac
  check "$file" "$path"
done < <(grep -rE --include='*.hpp' --include='*.cpp' '^#include ("|<crossrank/)' --exclude-dir=.venv include lib collectives workspace tools examples bench)

# Public headers: the standard library, nlohmann/json and each other; cereal in serialize.hpp alone.
while IFS=: read -r file line; do
  name=${line#*[<\"]}
  name=${name%[>\"]*}
  case $name in
    crossrank/* | nlohmann/json.hpp | nlohmann/json_fwd.hpp) ;;
    cereal/*) [[ $file == include/crossrank/serialize.hpp ]] || problem "$file includes $name: only serialize.hpp may" ;;
    mpi.h) [[ $file == include/crossrank/mpi.hpp ]] || problem "$file includes $name: only mpi.hpp may" ;;
    */* | *.h | *.hpp) problem "$file includes $name: public headers include the standard library, nlohmann/json and each other" ;;
  esac
done < <(grep -rE --include='*.hpp' '^#include ' include)

[[ $problems -eq 0 ]] || { echo "$problems includes against the layers"; exit 1; }
