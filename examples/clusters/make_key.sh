#!/bin/sh
# Makes the key that leads to the hosts, access/key, unless it is there: sh make_key.sh
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 access
if [ ! -s access/key ] || [ ! -s access/key.pub ]; then
    rm -f access/key access/key.pub
    ssh-keygen -q -t ed25519 -N '' -C pslaunch-clusters -f access/key
fi
chmod 644 access/key.pub # containers see it with the mode that it has here
ssh-keygen -l -f access/key.pub
