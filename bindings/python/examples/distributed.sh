#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Four ranks train LeNet-5 together (torch.distributed, gloo) and share one cache, in which each row exists once:
#
#     distributed.sh [options of lenet_mnist.py]
#
# cache_admin --run starts a server for the time of the training, makes a session and sets SESSION_ID for the ranks.
# CACHE_ADMIN names the program where it is not on the PATH, PYTHON the interpreter, RANKS another number of ranks.
# The ranks are started here rather than by torch.distributed.run, which fails in Debian 12 (torch 1.13, Python 3.11).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-/usr/bin/python3}
case " $* " in
    *' -h '* | *' --help '*)
        sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"
        exec "$python" "$here/lenet_mnist.py" --help ;;
esac
if [ -z "${LIBCACHE_RANKS_IN:-}" ]; then
    LIBCACHE_RANKS_IN=$here exec "${CACHE_ADMIN:-cache_admin}" --run -- "$here/distributed.sh" "$@"
fi
export WORLD_SIZE="${RANKS:-4}" MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
MASTER_PORT=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
pids=
trap 'kill $pids 2>/dev/null || true' INT TERM EXIT # no rank waits for one that has failed
rank=0
while [ "$rank" -lt "$WORLD_SIZE" ]; do
    RANK=$rank "$python" "$here/lenet_mnist.py" --cache "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done
for pid in $pids; do
    wait "$pid"
done
trap - EXIT
