# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Functions for training scripts, to be read in with `. cache_util.sh`. CACHE_ADMIN names the program where it is not on
# the PATH; $1 is the port, 50052 without it.

# Starts a server, or is content with the one that runs.
bootup_cache_server() {
    cache_util_said=$("${CACHE_ADMIN:-cache_admin}" --start -p "${1:-50052}" 2>&1) || case $cache_util_said in
        *'already up and running'*) ;;
        *) echo "$cache_util_said" >&2 && return 1 ;;
    esac
}

# Makes a session and sets CACHE_SESSION_ID.
generate_cache_session() {
    cache_util_said=$("${CACHE_ADMIN:-cache_admin}" --generate_session -p "${1:-50052}") || return 1
    CACHE_SESSION_ID=${cache_util_said##* }
    export CACHE_SESSION_ID
}

# Stops the server; one that does not run is no error.
shutdown_cache_server() {
    cache_util_said=$("${CACHE_ADMIN:-cache_admin}" --stop -p "${1:-50052}" 2>&1) || case $cache_util_said in
        *'not reachable'* | *'already shut down'* | *'no server'*) ;;
        *) echo "$cache_util_said" >&2 && return 1 ;;
    esac
}
