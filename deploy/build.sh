#!/bin/sh
# build.sh FOLDER cpu|cuda [PYTHON]: install this checkout and its libraries into the virtual environment FOLDER.
#
# The Dockerfile calls it, and so does tests/deploy, without Docker. PYTHON names the interpreter of an environment
# that has the libraries already: they are used from there, and only prep itself is installed.
set -eu

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: build.sh FOLDER cpu|cuda [PYTHON of an environment with the libraries]" >&2
    exit 2
fi
folder=$1 target=$2 libraries=${3-}
checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

case $target in
    cpu) torch="torch==2.13.0+cpu" index="--extra-index-url https://download.pytorch.org/whl/cpu" ;;
    cuda) torch="torch==2.13.0" index="" ;;
    *)
        echo "build.sh: target '$target' is unknown; use cpu or cuda" >&2
        exit 2
        ;;
esac

if [ -n "$libraries" ]; then
    "$libraries" -m venv --without-pip "$folder"
    site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$libraries" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/libraries.pth"
    # An editable prep of that environment is not imported: .pth files of a folder named in a .pth file are not read.
    "$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation \
        --ignore-installed --no-index "$checkout"
else
    python3 -m venv "$folder"
    # shellcheck disable=SC2086 # the index is two words or none
    "$folder/bin/python" -m pip install --quiet --no-cache-dir $index "$torch"
    extras=serve
    if [ "$target" = cuda ]; then extras=serve,cuda; fi
    "$folder/bin/python" -m pip install --quiet --no-cache-dir "${checkout}[$extras]"
fi
"$folder/bin/prep" version
