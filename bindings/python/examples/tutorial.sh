#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# MindSpore's tutorial on single-node caching, step by step:
#
#     tutorial.sh CIFAR_FOLDER
#
# with CIFAR-10's binary version. CACHE_ADMIN, PYTHON and PORT as for article.sh.
set -eu
case ${1:-} in
    -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    -*) echo "tutorial.sh: there is no option $1" >&2 && exit 2 ;;
esac
[ $# -eq 1 ] || { echo 'usage: tutorial.sh CIFAR_FOLDER' >&2 && exit 2; }
cifar=$1
[ -d "$cifar" ] || { echo "tutorial.sh: there is no folder $cifar" >&2 && exit 2; }
python=${PYTHON:-/usr/bin/python3} port=${PORT:-50052}
export LIBCACHE_PORT="$port"
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=/dev/null
. "$here/cache_util.sh"
work=$(mktemp -d)
trap 'shutdown_cache_server "$port"; rm -rf "$work"' EXIT

cat >"$work/source.py" <<'SCRIPT'
import sys
import libcache.dataset as ds
import libcache.dataset.vision.c_transforms as c_vision

cache = ds.DatasetCache(session_id=int(sys.argv[1]), size=0, spilling=False)
data = ds.Cifar10Dataset(sys.argv[2], num_samples=4, shuffle=False, num_parallel_workers=1, cache=cache)
data = data.map(operations=c_vision.RandomHorizontalFlip(), input_columns=["image"])   # random: above the cache
for number, row in enumerate(data.create_dict_iterator(num_epochs=1, output_numpy=True)):
    print(f"{number} image shape: {row['image'].shape}")
SCRIPT

cat >"$work/map.py" <<'SCRIPT'
import sys
import libcache.dataset as ds
import libcache.dataset.vision.c_transforms as c_vision

cache = ds.DatasetCache(session_id=int(sys.argv[1]), size=0, spilling=False)
schema = ds.Schema()
schema.add_column("image", de_type="uint8", shape=[640, 480, 3])
schema.add_column("label", de_type="uint8", shape=[])
data = ds.RandomDataset(total_rows=5, schema=schema, num_parallel_workers=1)
data = data.map(operations=c_vision.Rescale(1.0 / 255.0, -1.0), input_columns=["image"], cache=cache)
for number, row in enumerate(data.create_dict_iterator(num_epochs=1, output_numpy=True)):
    print(f"{number} image shape: {row['image'].shape}")
SCRIPT

cat >"$work/shard.py" <<'SCRIPT'
import sys
import libcache.dataset as ds

cache = ds.DatasetCache(session_id=int(sys.argv[1]), size=0, spilling=False)
data = ds.Cifar10Dataset(sys.argv[2], num_samples=4, shuffle=False, num_shards=4, shard_id=int(sys.argv[3]),
                         cache=cache)
print(f"process {sys.argv[3]}: {sum(1 for _ in data.create_dict_iterator(num_epochs=1))} rows")
SCRIPT

list_sessions() {
    "${CACHE_ADMIN:-cache_admin}" --list_sessions -p "$port"
}

bootup_cache_server "$port"
bootup_cache_server "$port" # content with the one that runs

echo '== a cache on the source: 4 rows'
generate_cache_session "$port"
"$python" "$work/source.py" "$CACHE_SESSION_ID" "$cifar"
list_sessions

echo '== a cache after a map: 5 rows'
generate_cache_session "$port"
"$python" "$work/map.py" "$CACHE_SESSION_ID"
list_sessions

echo '== one cache for 4 processes: 16 rows'
generate_cache_session "$port"
for shard in 0 1 2 3; do
    "$python" "$work/shard.py" "$CACHE_SESSION_ID" "$cifar" "$shard" &
    eval "pid$shard=\$!"
done
# shellcheck disable=SC2154 # the eval above sets them
for pid in "$pid0" "$pid1" "$pid2" "$pid3"; do
    wait "$pid"
done
list_sessions

"${CACHE_ADMIN:-cache_admin}" --destroy_session "$CACHE_SESSION_ID" -p "$port"
