#!/bin/bash
# Checks that `--help`, the man page and the completion of each subcommand name the same options.
# Usage: documented_options.sh CROSSRANK MAN_FOLDER COMPLETION_FILE
set -euo pipefail
command=$1 man=$2 completion=$3
PATH=$(dirname "$command"):$PATH
status=0

# options_in_help [SUBCOMMAND]: prints the options in --help, which has lines such as "  -n,--ranks INT" and "  --prefix,--no-prefix{false}".
options_in_help() {
  "$command" "$@" --help | sed -nE '/^Options:/,/^$/{/^  -/{s/^ +//; s/ .*//; s/\{[^}]*\}//g; s/,/\n/g; p}}' | sort -u
}

# options_in_page FILE: prints the options that start the entries of the man page's list.
options_in_page() {
  sed -n '/^\.SH OPTIONS/,/^\.SH [^O]/p' "$1" | grep -A1 '^\.TP' | grep '^\.B' | sed 's/\\-/-/g; s/\\f[RP]//g; s/\\//g' |
    grep -oE '(^|[ ,])-{1,2}[a-z][a-z-]*' | tr -d ' ,' | sort -u
}

# options_completed SUBCOMMAND: prints the completions of "crossrank SUBCOMMAND -", each as often as it is offered.
options_completed() {
  bash -c 'source "$1"; COMP_WORDS=(crossrank $2 -); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _crossrank
           printf "%s\n" "${COMPREPLY[@]}"' completed "$completion" "$1" | sort
}

compare() { # WHAT IN_HELP ELSEWHERE NAME_OF_ELSEWHERE
  [[ $2 != "$3" ]] || return 0
  echo "$1: < is only in --help, > is only in the $4"
  diff <(echo "$2") <(echo "$3") | grep '^[<>]' || true
  status=1
}

subcommands=$("$command" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p')
[[ -n $subcommands ]] || { echo "--help lists no subcommands"; exit 1; }
compare crossrank "$(options_in_help)" "$(options_in_page "$man/crossrank.1")" "man page"
for name in $subcommands; do
  page=$man/crossrank-$name.1
  [[ -e $page ]] || { echo "the man page crossrank-$name.1 is missing"; status=1; continue; }
  grep -q "^\\.B $name\$" "$man/crossrank.1" || { echo "crossrank.1 does not name $name"; status=1; }
  compare "$name" "$(options_in_help "$name")" "$(options_in_page "$page")" "man page"
  compare "$name" "$(options_in_help "$name")" "$(options_completed "$name")" completion
done
compare subcommands "$(sort <<<"$subcommands")" "$(bash -c 'source "$1"; COMP_WORDS=(crossrank ""); COMP_CWORD=1; _crossrank
  printf "%s\n" "${COMPREPLY[@]}"' completed "$completion" | grep -v '^-' | sort)" completion
exit "$status"
