#!/usr/bin/env bash
# Is this version isolated as well as another one? Runs a scenario with both in turn, and judges all runs together.
#
#   compare.sh SCENARIO FOLDER   compares this folder with FOLDER, which holds the other version
#
# Exit code: that of `partywall compare` (0 no worse, 1 worse, 3 inconclusive). Records and summary.md are in ./partywall-ci.
# Variables, all optional:
#   RUNS=6        runs of each version
#   TOLERANCE=1%  a loss of isolation that does not matter
#   RUN_ARGS      further options of `partywall run`, for example: --allow-commands --budget 30s
#   BEFORE, AFTER shell commands around each run, in the version's folder: build it, start it, end it
#   IMAGE, BASE_IMAGE  two images; BEFORE and AFTER of each version see its own as $IMAGE
set -euo pipefail
[ $# = 2 ] || { echo "usage: compare.sh SCENARIO FOLDER" >&2; exit 2; }
scenario=$1 runs=${RUNS:-6} here=$PWD results=$PWD/partywall-ci
image=${IMAGE:-} base_image=${BASE_IMAGE:-${IMAGE:-}}
base=$(cd "$2" && pwd)
mkdir "$results"

# measure FOLDER IMAGE NAME: one run. That a goal of the scenario does not hold is no failure here.
measure() (
  cd "$1"
  export IMAGE=$2
  code=0
  bash -euo pipefail -c "${BEFORE:-:}"
  # shellcheck disable=SC2086 # several options
  partywall run "$scenario" --out "$results/$3" ${RUN_ARGS:-} >"$results/$3.txt" 2>&1 || code=$?
  bash -euo pipefail -c "${AFTER:-:}"
  case $code in
    0 | 1 | 3) echo "$3: measured" ;;
    *) cat "$results/$3.txt" >&2; exit "$code" ;;
  esac
)

# The order turns round in each pair, so that a drift of the host meets both versions alike.
also=()
for number in $(seq "$runs"); do
  order="base new"
  [ $((number % 2)) = 1 ] || order="new base"
  for side in $order; do
    if [ "$side" = new ]; then measure "$here" "$image" "new-$number"
    else measure "$base" "$base_image" "base-$number"; fi
  done
  [ "$number" = 1 ] || also+=(--also "$results/new-$number" --also-reference "$results/base-$number")
done

code=0
COLUMNS=120 partywall compare "$results/new-1" "$results/base-1" "${also[@]}" \
  --in-turn --chance 1% --tolerance "${TOLERANCE:-1%}" >"$results/comparison.txt" || code=$?
case $code in
  0) verdict="isolated as well as the other version" ;;
  1) verdict="isolated worse than the other version" ;;
  3) verdict="not known: the runs vary too much, or something was not measured" ;;
  *) exit "$code" ;;
esac
{
  printf '### Partywall: %s\n\n' "$verdict"
  # shellcheck disable=SC2016 # the quotes of Markdown
  printf 'Scenario `%s`, %s runs of each version in turn.\n\n```text\n' "$scenario" "$runs"
  cat "$results/comparison.txt"
  printf '```\n'
} | tee "$results/summary.md"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$results/summary.md" >>"$GITHUB_STEP_SUMMARY"
exit "$code"
