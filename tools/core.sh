#!/usr/bin/env bash
# Tests the core (tests/wire, tests/protocol: it needs no Spark) on the lowest and the newest Python of
# this machine, where they are others than that of `make setup`: patch releases differ, too.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly lock=tools/requirements/job.txt
readonly packages="asn1crypto dnspython execnet filelock h11 hypothesis iniconfig numpy packaging pluggy
    prometheus-client psutil pyarrow pygments pytest pytest-timeout pytest-xdist python-dateutil scramp
    six sortedcontainers"

say() { echo "core: $*"; }

# Version and path of each Python that can make environments; a version manager's shim may stand for
# nothing.
pythons() {
    local name
    for name in /usr/bin/python3 python3.11 python3.12 python3.13 python3.14; do
        command -v "$name" >/dev/null || continue
        "$name" -c '
import ensurepip, platform, sys, venv
if sys.version_info >= (3, 11):
    print(platform.python_version(), sys.executable)' 2>/dev/null || true
    done | sort --version-sort --unique
}

# The lock's lines for the packages, with their hashes.
locked() {
    awk -v names="$packages" '
        BEGIN { count = split(names, each); for (i = 1; i <= count; i++) wanted[each[i]] }
        /^[a-z0-9]/ { split($1, name, "=="); is_wanted = name[1] in wanted }
        is_wanted' "$lock"
}

own=$(.venv/bin/python -c 'import platform; print(platform.python_version())')
others=$(pythons | awk -v own="$own" '$1 != own')
if [ -z "$others" ]; then
    say "found no Python but $own, which runs all tests: nothing to do"
    exit 0
fi
{ head -n 1 <<<"$others"; tail -n 1 <<<"$others"; } | uniq | while read -r version python; do
    say "Python $version ($python)"
    environment=build/core-$version stamp=build/core-$version/stamp-$(locked | git hash-object --stdin)
    if [ ! -e "$stamp" ]; then
        rm -rf "$environment"
        "$python" -m venv "$environment"
        "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes \
            -r <(locked)
        touch "$stamp"
    fi
    "$environment/bin/python" -m pytest -q -n 2 tests/wire tests/protocol </dev/null
done
