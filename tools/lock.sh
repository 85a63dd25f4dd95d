#!/usr/bin/env bash
# Resolves tools/requirements/*.txt from the .in files and pyproject.toml, with hashes, for every
# platform and every Python from 3.11 on. Pins that still fit are kept; `--upgrade` lifts them.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r tools/requirements/build.txt

compile() {
    "$tools/bin/python" ../uv_pip.py compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate \
        --custom-compile-command "make lock" "$@"
}

cd tools/requirements
compile "${@}" build.in -o build.txt
compile "${@}" ../../pyproject.toml --all-extras -c job.in -o job.txt
compile "${@}" airflow.in -o airflow.txt
compile "${@}" docs.in -o docs.txt

# A committed file names no package index: where packages come from is the machine's business.
if grep -nE '[a-z]+://' build.txt job.txt airflow.txt docs.txt; then
    echo "lock: the lines above hold an address" >&2
    exit 1
fi
echo "lock: $(cat build.txt job.txt airflow.txt docs.txt | grep -c ==) pins in tools/requirements/"
