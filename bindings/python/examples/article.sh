#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The article on MindSpore's data set cache that libcache starts from, line by line:
#
#     article.sh MNIST_FOLDER CIFAR_FOLDER
#
# with the four files of MNIST (.gz or not) and CIFAR-10's binary version. CACHE_ADMIN names the program where it is not
# on the PATH, PYTHON the interpreter, PORT another port than 50052.
set -eu
case ${1:-} in
    -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    -*) echo "article.sh: there is no option $1" >&2 && exit 2 ;;
esac
[ $# -eq 2 ] || { echo 'usage: article.sh MNIST_FOLDER CIFAR_FOLDER' >&2 && exit 2; }
mnist=$1 cifar=$2
for folder in "$mnist" "$cifar"; do
    [ -d "$folder" ] || { echo "article.sh: there is no folder $folder" >&2 && exit 2; }
done
admin=${CACHE_ADMIN:-cache_admin} python=${PYTHON:-/usr/bin/python3} port=${PORT:-50052}
export LIBCACHE_PORT="$port"
work=$(mktemp -d)
stop() {
    "$admin" --stop -p "$port" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap stop EXIT

cat >"$work/mnist.py" <<'SCRIPT'
import sys
import libcache.dataset as ds

session, folder, samples = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
cache = ds.DatasetCache(session_id=session, size=0, spilling=True)
data = ds.MnistDataset(folder, usage="train", num_samples=samples, cache=cache)
print(sum(1 for _ in data.create_dict_iterator(num_epochs=1)), "rows read")
SCRIPT
sed 's/MnistDataset/Cifar10Dataset/' "$work/mnist.py" >"$work/cifar.py" # only the name of the class

rows_cached() { # the third column of the last line; n/a while there are none
    "$admin" --list_sessions -p "$port" | awk 'END {print $3}'
}

echo '== start a server, and see its port bound'
mkdir "$work/spill"
"$admin" --start -p "$port" -s "$work/spill"
"$python" - "$port" <<'SCRIPT'
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("port bound")
SCRIPT

echo '== make a session'
"$admin" -g -p "$port" | tee "$work/session"
session=$(awk 'END {print $NF}' "$work/session")
"$admin" --list_sessions -p "$port"

echo '== 4 samples'
"$python" "$work/mnist.py" "$session" "$mnist" 4
"$admin" --list_sessions -p "$port"
[ "$(rows_cached)" = 4 ]

echo '== all samples, and the count while they are loaded'
"$python" "$work/mnist.py" "$session" "$mnist" 0 >"$work/said" &
loader=$!
seen=0 last=
while kill -0 "$loader" 2>/dev/null; do
    now=$(rows_cached)
    if [ "$now" != "$last" ]; then
        echo "cached: $now"
        last=$now seen=$((seen + 1))
    fi
done
wait "$loader"
cat "$work/said"
echo "cached: $(rows_cached), after $seen different counts"

echo '== CIFAR-10'
"$python" "$work/cifar.py" "$session" "$cifar" 0
"$admin" --list_sessions -p "$port"

echo '== destroy the session, stop the server'
"$admin" --destroy_session "$session" -p "$port"
"$admin" --list_sessions -p "$port"
"$admin" --stop -p "$port"
