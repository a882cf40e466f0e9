#!/bin/bash
# Checks that home-made words, which the terms of docs/GLOSSARY.md have replaced, do not come back in prose, in names of
# files or as parts of identifiers. Usage: retired_words.sh SOURCE_TREE
#
# Some retired names are also ordinary words or have another usual meaning: awake, box of chunks, cut, flight recorder, host
# of a job, life of an object, medium, port, turn, verb, wire. No type may have these names, or end with Life, Turn,
# Turns or Wire.
set -euo pipefail
cd "$1"

words=(
  meeting patrol lobby lobbies guest bell withhold withheld bury buried beat life.token watcher  # node
  patience ticket lookout                                                                        # transports
  resident twin fellow team rulebook rule.book sharding.decision staged.file widen publication   # workspaces, checkpoints
  culprit remedy remedies last.words story stories room                                          # errors
)
# "cut" is retired for sharding: as the key of a rule and as a part of a name. It is also a command of the shell.
sharding='"cut\\?"|(^|[^A-Za-z])cuts?_[a-z]|[a-z]_cuts?([^a-z]|$)|Cuts?[A-Z]'
types=(Awake Cut Flight '[A-Za-z]*Life' Medium NfsMedium NodeDomain Port SharedMedium Staging '[A-Za-z]*Turns?' Verb '[A-Za-z]*Wire')

join() { local IFS='|'; echo "$*"; }
lower=$(join "${words[@]}")
camel=$(sed -E 's/(^|[.|])([a-z])/\1\u\2/g; s/[.]//g' <<<"$lower")
upper=${lower^^}
# In lower_case and UPPER_CASE a word ends where its letters end, in CamelCase also at the next capital letter.
pattern="(^|[^A-Za-z])($lower)s?([^a-z]|$)|($camel)s?([^a-z]|$)|(^|[^A-Z])($upper)S?([^A-Za-z]|$)"
declaration="\b(class|struct|union|concept|enum|enum class|using) ($(join "${types[@]}"))\b"

# The small model in tests/data has the name stories260k.
not_a_word='stories260k'
# This file has to name the words.
files() {
  find . -type f -not -path './.git' -not -path './.git/*' -not -path './build*' -not -path '*/.venv/*' -not -path './bench/results/*' \
    -not -path './tests/data/*' -not -path './LICENSE' -not -path './tests/structure/retired_words.sh' -not -name '*.svg' -print0
}
# Prints the lines that have a retired word outside of that name. A line begins with the name of its file.
found() { sed -E "s/$not_a_word/NAME/g" | grep -E "$pattern"; }
failed=0
if files | xargs -0 grep -nIE "$pattern" | found; then failed=1; fi
if files | xargs -0 grep -nIE "$sharding"; then failed=1; fi
if files | xargs -0 grep -nIE "$declaration" | grep -E '^[^:]*[.][ch]pp:'; then failed=1; fi
if files | tr '\0' '\n' | grep -E "$pattern" | found; then failed=1; fi
if [[ $failed -ne 0 ]]; then
  echo "these lines or names use a retired word: docs/GLOSSARY.md has the term to use"
  exit 1
fi
