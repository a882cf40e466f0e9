#!/bin/bash
# Checks that messages of the library name its options and not the flags of a command, because a program that calls the
# library has no such flags. The command replaces the options by its flags (tools/cli/option_flags.cpp). Usage: options.sh SOURCE_TREE
set -euo pipefail
cd "$1"
# Other programs' flags may be named together with the program.
if grep -rnE --include='*.hpp' --include='*.cpp' '^[^/]*"([^"]*[^"a-z-])?--[a-z]' lib collectives workspace include |
  grep -vE '(docker|srun|mpirun|distribution=block|Megatron)'; then
  echo "these lines name a flag: name the option of the library, in backquotes"
  exit 1
fi
