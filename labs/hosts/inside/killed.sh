#!/usr/bin/env bash
# A run is killed with kill -9 in the middle of measuring; what it left is gone after the next start.
set -u
scenario=${1:-/opt/try/scenarios/short.yaml}
rm -rf killed
partywall run "$scenario" --out killed >/dev/null 2>&1 &
controller=$!
for _ in $(seq 600); do
  [ -s killed/events.jsonl ] && grep -q block_done killed/events.jsonl && break
  sleep 0.1
done
grep -q block_done killed/events.jsonl || { echo "the run never finished a block"; kill -9 $controller; exit 1; }
kill -9 $controller
wait $controller 2>/dev/null

left() {
  local mine=()
  for environment in /proc/[0-9]*/environ; do
    if tr '\0' '\n' 2>/dev/null <"$environment" | grep -q ^PARTYWALL_RUN=; then mine+=("process ${environment:6:-8}"); fi
  done
  for path in /var/tmp/partywall-* "${XDG_RUNTIME_DIR:-/run}"/partywall*/killed-* /run/partywall/killed-* $(find /sys/fs/cgroup -mindepth 1 -path "*/partywall/*" -type d 2>/dev/null); do
    if [ -e "$path" ]; then mine+=("$path"); fi
  done
  printf '%s\n' "${mine[@]}"
}
before=$(left | grep -c .)
[ "$before" -gt 0 ] || { echo "kill -9 left nothing to reap, so nothing was tried"; exit 1; }
partywall reap || exit 1
after=$(left)
[ -z "$after" ] || { echo "left after reap: $after"; exit 1; }
echo "$before things left by kill -9, none after reap"
