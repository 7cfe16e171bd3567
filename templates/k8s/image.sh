#!/bin/sh
# The steps that make an image for jobs, as root in a system with Python 3.11 or later and its venv module:
#
#     [WHEEL=FILE] image.sh REQUIREMENT...
#
# The requirements come into an environment whose Python is the first in PATH, then pslaunch's wheel with what
# `pslaunch version` and `pslaunch pserver` import, but without what only launchers need: over 100 MB. No job imports
# typer, so its bytecode (9 MB with that of what it needs) is left out, and of numpy what only compilers and
# type checkers read. Any user may run it: nothing in it is private, and nothing is written later.
set -eu
python3 -m venv /opt/pslaunch
install() {
    /opt/pslaunch/bin/python -m pip install --no-cache-dir --disable-pip-version-check "$@"
}
install "$@"
if [ -n "${WHEEL:-}" ]; then
    install --no-compile typer
    install --no-deps "$WHEEL"
fi
/opt/pslaunch/bin/python -m pip uninstall -q -y pip setuptools
find /opt/pslaunch/lib -name tests -type d -prune -exec rm -rf {} +
numpy=$(echo /opt/pslaunch/lib/python*/site-packages/numpy)
rm -rf "$numpy/f2py" "$numpy/distutils"
find "$numpy" \( -name '*.pyi' -o -name '*.h' -o -name '*.a' \) -exec rm {} +
chmod -R a+rX /opt/pslaunch
