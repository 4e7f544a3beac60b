#!/bin/sh
# perf.sh [BRANCH] [OPTION …]: measures HEAD against the commit where it left BRANCH of origin; without BRANCH, or where
# that is empty, against its parent. Options are those of `perfci compare`. Ends as perfci does: 0 passed or undecided,
# 1 the gate failed, 2 usage or configuration, 3 the measurement or the machine failed.
set -eu
branch=${1:-}
if [ $# -gt 0 ]; then shift; fi
rm -rf perfci-out # of an earlier job in the same checkout: a report that stands there must not pass for this one's
lost() {
    echo "perf.sh: $1 cannot be fetched from origin: let this job read the repository" >&2
    exit 3
}
if [ "$(git rev-parse --is-shallow-repository)" = true ]; then # where it left the branch is not known then
    git fetch --quiet --unshallow origin || lost "the history"
fi
base=HEAD~1
if [ -n "$branch" ]; then
    git fetch --quiet origin "+refs/heads/$branch:refs/remotes/origin/$branch" || lost "$branch"
    base=origin/$branch
fi
exec perfci compare "$base" --committed "$@"
