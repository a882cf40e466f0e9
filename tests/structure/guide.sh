#!/bin/bash
# Checks that each chapter of docs/guide links a program under examples/, that each cpp, cmake and python block of it is found
# there line by line (with any indentation), and that the index links every chapter. Usage: guide.sh SOURCE_TREE
set -euo pipefail
cd "$1/docs/guide"
status=0
complain() { echo "$1"; status=1; }

flat() { sed -E 's/^[ \t]+//; s/[ \t]+$//' "$@"; }

check_chapter() { # CHAPTER
  local chapter=$1 file program="" block="" line open="" found blocks=0
  local -a files=()
  while read -r file; do
    [[ -f $file ]] && files+=("$file") || complain "$chapter links $file, which does not exist"
  done < <(grep -oE '\(\.\./\.\./examples/[A-Za-z0-9_./-]+\.(cpp|hpp|txt|py)\)' "$chapter" | tr -d '()' | sort -u)
  [[ ${#files[@]} -gt 0 ]] || { complain "$chapter links no file of examples/"; return; }
  program=$(for file in "${files[@]}"; do echo; flat "$file"; echo; done)
  while IFS= read -r line; do
    if [[ $line =~ ^\`\`\`(cpp|cmake|python)$ ]]; then
      open=yes block="" blocks=$((blocks + 1))
    elif [[ $line == '```' && -n $open ]]; then
      open=""
      found=$'\n'$(flat <<<"$block")$'\n'
      [[ $'\n'$program$'\n' == *"$found"* ]] || complain "$chapter: this block is not in ${files[*]#../../}:$found"
    elif [[ -n $open ]]; then
      block+=${block:+$'\n'}$line
    fi
  done <"$chapter"
  [[ $blocks -gt 0 ]] || complain "$chapter quotes no code"
}

count=0
for chapter in [0-9]*.md; do
  count=$((count + 1))
  check_chapter "$chapter"
  grep -q "($chapter)" README.md || complain "docs/guide/README.md does not link $chapter"
done
[[ $count -eq 13 ]] || complain "there are $count chapters, not thirteen"
exit "$status"
