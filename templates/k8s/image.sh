#!/bin/sh
# The steps that make an image for jobs, as root in a system with Python 3.11 or later and its venv module:
#
#     image.sh REQUIREMENT...
#
# The requirements, such as the file of pslaunch's wheel, come into an environment whose Python is the first
# in PATH. Any user may run it: nothing in it is private, and nothing is written later.
set -eu
python3 -m venv /opt/pslaunch
/opt/pslaunch/bin/python -m pip install --no-cache-dir --disable-pip-version-check "$@"
/opt/pslaunch/bin/python -m pip uninstall -q -y pip setuptools
find /opt/pslaunch -name tests -type d -prune -exec rm -rf {} +
chmod -R a+rX /opt/pslaunch
