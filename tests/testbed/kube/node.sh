# The first process of a node, in namespaces of its own: makes them look like a machine. Says "up" when its network
# can be plugged in, waits for lines of `ip`, and then holds the namespaces; what runs on it is started from outside.
#
#     node.sh NAME PROGRAMS
#
# /tmp is its own, but for the folder PROGRAMS, which may be there.
set -eu
hostname "$1"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/lock /run/outer
mount --bind /tmp /run/outer
mount -t tmpfs -o mode=1777 tmpfs /tmp
case $2 in
/tmp/*)
    mkdir -p "$2"
    mount --bind "/run/outer${2#/tmp}" "$2"
    ;;
esac
umount /run/outer
echo up
read -r _
while read -r line && [ "$line" ]; do echo "$line"; done | ip -batch -
echo 1 >/proc/sys/net/ipv4/ip_forward
echo connected
sleep infinity &
wait # also for orphans
