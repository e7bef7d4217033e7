# SPDX-License-Identifier: Apache-2.0
# bash completion for cache_admin, dataset-cache, cache_perf and cache_server. Options come from the program's own --help,
# so that this file knows of each; the values are completed where they can be known.
# shellcheck shell=bash

_libcache_options() { # PROGRAM
    "$1" --help 2>/dev/null | grep -oE -e '(^|[^[:alnum:]<-])--?[[:alpha:]][[:alnum:]_]*' | grep -oE -e '--?[[:alpha:]].*'
}

_libcache_sessions() { # PROGRAM
    "$1" --list_sessions --json 2>/dev/null | grep -oE '"session_id": *[0-9]+' | grep -oE '[0-9]+$'
}

_libcache() {
    local program=$1 word=$2 previous=$3 i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then # cache_admin --run -- PROGRAM...
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            else
                mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
            fi
            return
        fi
    done
    case $previous in
    -s | --spilldir)
        if [[ ${program##*/} != cache_perf || $previous == --spilldir ]]; then
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            compopt -o filenames 2>/dev/null
        fi
        return
        ;;
    --json)
        if [[ ${program##*/} == cache_perf ]]; then
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            compopt -o filenames 2>/dev/null
            return
        fi
        ;;
    --backing) mapfile -t COMPREPLY < <(compgen -W 'auto huge memfd' -- "$word") && return ;;
    --group) mapfile -t COMPREPLY < <(compgen -g -- "$word") && return ;;
    --ids) mapfile -t COMPREPLY < <(compgen -W 'dense random' -- "$word") && return ;;
    --server) mapfile -t COMPREPLY < <(compgen -W auto -- "$word") && return ;;
    -h | --hostname) mapfile -t COMPREPLY < <(compgen -W 127.0.0.1 -- "$word") && return ;;
    -l | --loglevel) mapfile -t COMPREPLY < <(compgen -W '0 1 2 3 4' -- "$word") && return ;;
    -d | --destroy_session | --destroy_cache)
        mapfile -t COMPREPLY < <(compgen -W "$(_libcache_sessions "$program")" -- "$word")
        return
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$(_libcache_options "$program")" -- "$word")
}

complete -F _libcache cache_admin dataset-cache cache_perf cache_server
