#!/usr/bin/env bash
# tools/setup.sh job|airflow|docs: makes the environment that the Makefile's targets run in.
#
#   job      .venv          this project, its pinned packages and tools; the Delta jars; Java; after
#                           its end, in the background, Spark's classes, parsed and checked
#   airflow  .venv-airflow  Airflow and its Spark provider, nothing of ours
#   docs     .venv-docs     what builds the documentation's site, nothing of ours
#
# Does nothing where the environment already fits: a stamp in it names the hash of all that decides
# about it. A few lines go to the screen, everything else to a log that is shown on failure.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly environment=${1:?usage: tools/setup.sh job|airflow|docs}
case $environment in
    job)     venv=.venv         inputs=(tools/requirements/job.txt pyproject.toml) ;;
    airflow) venv=.venv-airflow inputs=(tools/requirements/airflow.txt) ;;
    docs)    venv=.venv-docs    inputs=(tools/requirements/docs.txt) ;;
    *) echo "setup: unknown environment '$environment': expected job, airflow or docs" >&2; exit 2 ;;
esac
inputs+=(tools/requirements/build.txt tools/setup.sh tools/uv_pip.py tools/build.cfg)
readonly venv inputs log=$venv/setup.log
readonly lock=tools/requirements/$environment.txt

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

# The checkout's path counts: scripts in a virtual environment hold it, so a moved one is made again.
wanted_stamp() {
    { pwd; cat "${inputs[@]}"; } | git hash-object --stdin
}

find_python() {
    local name candidate found="" without_venv=""
    for name in python3.13 python3.12 python3.11 python3; do
        # `python3` may be too old, and a version manager's shim may stand for nothing: ask it.
        candidate=$(command -v "$name") || continue
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            found="$found $("$candidate" --version 2>/dev/null || true)"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            without_venv=$candidate
        else
            echo "$candidate"
            return
        fi
    done
    [ -z "$without_venv" ] ||
        fail "$without_venv lacks the venv module: install it (Debian: apt install python3-venv)."
    fail "Python 3.11 or newer is needed (found:${found:- none}): install it (Debian: apt install python3 python3-venv)."
}

# Says every ten seconds what the log says last, in ASCII, until it is killed or this script is gone
# (an interrupt passes by what runs in the background). Its `sleep` may outlive it: it holds neither
# output nor lock.
watch_log() {
    while sleep 10 >/dev/null 2>&1 9>&- && kill -0 $$ 2>/dev/null; do
        say "$((SECONDS - started)) s, $(tail -n 1 "$log" | LC_ALL=C tr -cd '[:print:]' | cut -c 1-90)"
    done
}

# Runs a command with its output in the log; on failure shows the end of it and stops.
logged() {
    local watch code=0
    echo "+ $*" >>"$log"
    watch_log &
    watch=$!
    "$@" >>"$log" 2>&1 </dev/null || code=$?
    kill "$watch" 2>/dev/null || true
    wait "$watch" 2>/dev/null || true
    if [ "$code" -ne 0 ]; then
        tail -n 25 "$log" >&2
        fail "installing ${*: -1} failed; the whole output is in $log."
    fi
}

make_environment() {
    local python
    python=$(find_python)
    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null || [ "$(cat "$venv/checkout" 2>/dev/null)" != "$PWD" ]; then
        rm -rf "$venv"
        "$python" -m venv "$venv" || fail "$python -m venv $venv failed."
        pwd >"$venv/checkout"
    fi
    : >"$log"
    say "$("$venv/bin/python" --version) in $venv; installing $(grep -c == "$lock") pinned packages (a minute or less)"
    # uv and the build tools are pinned too: packages without a wheel are built with them and no others.
    logged "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --require-hashes -r tools/requirements/build.txt
    local uv=("$venv/bin/python" tools/uv_pip.py install)
    # The lock names everything. With nothing left to resolve, uv takes packages that it built before.
    logged "${uv[@]}" --no-deps --require-hashes --build-constraints tools/requirements/build.txt -r "$lock"
    if [ "$environment" = job ]; then
        logged "${uv[@]}" --no-deps --no-build-isolation --editable .
        # PySpark looks for data sources in folders, and an editable installation has none.
        ln -sf "$PWD/pyspark_dcp.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    fi
}

# Asked for every time: a jar may have been deleted since, or Java uninstalled. Takes a tenth of a second.
prepare_runtime() {
    local answer
    answer=$("$venv/bin/python" -m dcp.lake.spark.runtime) || exit 1
    [ "$1" = quiet ] || while read -r line; do say "$line"; done <<<"$answer"
}

command -v git >/dev/null || fail "git is needed: install it (Debian: apt install git)."
stamp=$venv/stamp-$(wanted_stamp)
if [ -e "$stamp" ] && [ -x "$venv/bin/python" ]; then
    [ "$environment" != job ] || prepare_runtime quiet
    exit 0
fi
# Two `make` at once must not install into one environment (where the system has no flock, they may).
exec 9>"$venv.lock"
! command -v flock >/dev/null || flock 9
if [ -e "$stamp" ]; then exit 0; fi
started=$SECONDS
make_environment
if [ "$environment" = job ]; then
    say "packages installed after $((SECONDS - started)) s; Java and the Delta jars, downloaded where they are missing"
    prepare_runtime loud
    # It is in its place when it is whole, and sessions start without it. It holds a lock until then,
    # for those who start so many sessions that they had better wait (`make test`).
    say "Spark's classes are archived in the background (half a minute; $venv/class-archive.log)"
    exec 8>"$venv-classes.lock"
    ! command -v flock >/dev/null || flock 8
    nohup nice "$venv/bin/python" -m dcp.cli.class_archive </dev/null >"$venv/class-archive.log" 2>&1 9>&- &
    exec 8>&-
fi
rm -f "$venv"/stamp-*
touch "$stamp"
say "done in $((SECONDS - started)) s"
