#!/bin/sh
# Makes the image's only user, sshd's settings and its start, as root: account.sh NAME, in a folder with both files.
set -eu
cd "$(dirname "$0")"
# '*' is no password; '!' would lock the account, keys included.
useradd --uid 1000 --user-group --create-home --shell /bin/bash --password '*' "$1"
sed "s|pslaunch|$1|" sshd_config >/etc/ssh/sshd_config
sed "s|pslaunch|$1|" start >/usr/local/bin/start
chmod 755 /usr/local/bin/start
# Host keys that the package makes would be the same in every container: `start` makes them instead.
rm -f /etc/ssh/ssh_host_*
