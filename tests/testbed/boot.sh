# The first process of a host, in namespaces of its own (mounts, processes, network, name): makes them look
# like a machine and becomes its sshd. Says "up" when its network can be plugged in, and waits for a line.
#
#     boot.sh FOLDER NAME HOME ROOT SSHD CHROOT HIDDEN...
#
# FOLDER/NAME has what is the host's own; HIDDEN are folders of this machine that a host does not have.
set -eu
folder=$1 name=$2 home=$3 root=$4 sshd=$5 chroot=$6
shift 6
own=$folder/$name

hostname "$name"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd /run/empty
if [ "$chroot" ]; then # an older system: its files, unchanged below what is written here
    mkdir /run/up /run/work
    mount -t overlay -o "lowerdir=$chroot,upperdir=/run/up,workdir=/run/work" overlay /mnt
fi
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind "$own/home" "$home"
mount --bind "$own/root" "$root"
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$own/passwd" /etc/passwd
mount --bind "$own/shadow" /etc/shadow
for path in "$@"; do
    [ ! -d "$path" ] || mount --bind /run/empty "$path"
done
if [ "$chroot" ]; then
    for path in /proc /dev /tmp "$home" "$root"; do
        mkdir -p "/mnt$path"
        mount --rbind "$path" "/mnt$path"
    done
    cp /etc/passwd /etc/hosts /mnt/etc
fi

echo up
read -r _
while read -r line && [ "$line" ]; do echo "$line"; done | ip -batch -
exec "$sshd" -D -e -f "$own/sshd_config" </dev/null >/dev/null 2>>"$own/sshd.log"
