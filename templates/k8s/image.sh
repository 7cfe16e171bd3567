#!/bin/sh
# The steps that make an image for jobs, as root in a system with Python 3.11 or later and its venv module:
#
#     [WHEEL=FILE] image.sh REQUIREMENT...
#
# The requirements come into an environment whose Python is the first in PATH, and pslaunch's wheel without what only
# launchers need: over 100 MB. Any user may run it: nothing in it is private, and nothing is written later.
set -eu
python3 -m venv /opt/pslaunch
install() {
    /opt/pslaunch/bin/python -m pip install --no-cache-dir --disable-pip-version-check "$@"
}
install "$@"
[ -z "${WHEEL:-}" ] || install --no-deps "$WHEEL"
/opt/pslaunch/bin/python -m pip uninstall -q -y pip setuptools
find /opt/pslaunch -name tests -type d -prune -exec rm -rf {} +
chmod -R a+rX /opt/pslaunch
