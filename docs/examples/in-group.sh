#!/bin/sh
# Runs a command in a cgroup of its own, as a container or a service is, and removes the group afterwards. Needs root.
#   in-group.sh NAME COMMAND...
name=$1
shift
groups=
for top in /sys/fs/cgroup /sys/fs/cgroup/cpu /sys/fs/cgroup/cpuacct /sys/fs/cgroup/blkio /sys/fs/cgroup/freezer; do
    if [ -w "$top/cgroup.procs" ] && mkdir -p "$top/$name"; then
        groups="$groups $top/$name"
    fi
done
(
    for group in $groups; do
        echo 0 > "$group/cgroup.procs"
    done
    exec "$@"
) &
child=$!
# A signal for this script is one for the command.
trap 'kill -TERM "$child" 2> /dev/null' TERM INT
wait "$child"
code=$?
while kill -0 "$child" 2> /dev/null; do
    wait "$child"
    code=$?
done
rmdir $groups 2>/dev/null
exit "$code"
