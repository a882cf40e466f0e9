# Completion of the crossrank command for bash. The words come from the installed command's own --help.

# Prints the options of `crossrank ARGUMENTS... --help`, one per line.
_crossrank_options() {
  "$@" --help 2>/dev/null | sed -nE '/^Options:/,/^$/{/^  -/{s/^ +//; s/ .*//; s/\{[^}]*\}//g; s/,/\n/g; p}}'
}

_crossrank() {
  local command=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i words
  COMPREPLY=()
  for ((i = 2; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} != -- ]] && continue
    # The words of another program follow.
    if declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); else COMPREPLY=($(compgen -c -f -- "$word")); fi
    return
  done
  if ((COMP_CWORD == 1)); then
    words="$("$command" --help 2>/dev/null | sed -n '/^Subcommands:/,$s/^  \([a-z]*\) .*/\1/p') $(_crossrank_options "$command")"
  else
    case $before in
      --policy) words="exact rescale requantize" ;;
      --crc) words="require warn ignore" ;;
      --fused-layout) words="per_rank plain" ;;
      --to) words="safetensors torch images" ;;
      --progress) words="auto bar lines none" ;;
      *) [[ $word == -* ]] || return 0; words=$(_crossrank_options "$command" "${COMP_WORDS[1]}") ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}

# Falls back to file names.
complete -o default -F _crossrank crossrank
