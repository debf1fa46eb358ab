#!/bin/sh
# Two tenants behind a bridge and a link of 100 Mbit/s, each with an endless TCP stream to a sink. Needs root and iperf3.
#   two-tenants.sh COMMAND...   runs a command beside them, and removes everything afterwards
set -e
command -v iperf3 > /dev/null || { echo 'two-tenants.sh needs iperf3: apt install iperf3' >&2; exit 1; }
for name in shop batch sink; do
    [ ! -e "/run/netns/$name" ] || { echo "two-tenants.sh: there is a namespace $name already" >&2; exit 1; }
done
for link in br-tenants shop0 batch0 up0; do
    [ ! -e "/sys/class/net/$link" ] || { echo "two-tenants.sh: there is an interface $link already" >&2; exit 1; }
done
streams=
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'kill $streams 2>/dev/null || true; for name in shop batch sink; do ip netns del "$name" || true; done
      ip link del br-tenants || true' EXIT
ip link add br-tenants type bridge
ip link set br-tenants up
number=1
for name in shop batch sink; do
    port=${name}0
    [ "$name" = sink ] && port=up0
    ip netns add "$name"
    ip link add "$port" type veth peer name eth0 netns "$name"
    ip link set "$port" master br-tenants up
    ip -n "$name" addr add "10.99.0.$number/24" dev eth0
    ip -n "$name" link set eth0 up
    number=$((number + 1))
done
for port in 5201 5202; do
    ip netns exec sink iperf3 --server --port "$port" >/dev/null &
    streams="$streams $!"
done
sleep 1
ip netns exec shop iperf3 --client 10.99.0.3 --port 5201 --time 600 >/dev/null &
streams="$streams $!"
ip netns exec batch iperf3 --client 10.99.0.3 --port 5202 --time 600 --parallel 4 >/dev/null &
streams="$streams $!"
"$@"
