#!/bin/sh
# nightly.sh CLONE BRANCH RESULTS [OPTION …]: measures BRANCH of origin against its commit of the last night that was
# judged, into a folder of RESULTS of its own. Prints the report where the gate fails or nothing could be measured, and
# nothing else, so that cron mails what somebody has to read:
#     MAILTO=kernels@example.com
#     15 2 * * *  /srv/perf/nightly.sh /srv/perf/clone main /srv/perf/results
set -eu
clone=$1 branch=$2 results=$3
shift 3
cd "$clone"
git fetch --quiet origin "+refs/heads/$branch:refs/remotes/origin/$branch"
now=$(git rev-parse "refs/remotes/origin/$branch")
judged=refs/perfci/nightly/$branch # a ref, so that git keeps the commit
if last=$(git rev-parse --quiet --verify "$judged"); then
    if [ "$last" = "$now" ]; then exit 0; fi
else
    last=$now~1 # the first night
fi
git checkout --quiet --detach "$now"
out=$results/$(date +%Y-%m-%d-%H%M%S)
mkdir -p "$results"
code=0
log=$(perfci compare "$last" --committed --out "$out" "$@" 2>&1) || code=$?
if [ "$code" -le 1 ]; then # judged: the next night compares with this one
    git update-ref "$judged" "$now"
fi
if [ "$code" -ne 0 ]; then
    echo "perfci ended with $code: $last..$now, $out"
    if [ -s "$out/report.md" ]; then cat "$out/report.md"; else echo "$log"; fi
fi
exit "$code"
