#!/bin/sh
# Measures the commit that is checked out against `base` on several nodes of a Slurm cluster: one verdict. Call it in the
# repository, where sbatch is: it submits a job that plans, an array that measures, and a job that merges, waits, and
# ends as `perfci compare` does: 0 passed or undecided, 1 the gate failed, 2 usage or configuration, 3 the measurement or
# the machine failed. Jobs go on where this script is killed; Ctrl-C and SIGTERM cancel them.
# The repository must lie where every node sees it, and stay at its commit until the verdict.
set -eu

base=main
shards=4 # jobs that share the cases; as many as there are GPUs for at a time
perfci=perfci # on every node
results="perfci-out/slurm" # in the repository, or absolute
# Options of sbatch, without spaces within one. Jobs that plan and measure need nodes with one model of GPU; --exclusive
# keeps others from the node, whose power, memory and cores they would share.
measuring="--gres=gpu:1 --exclusive --time=60"
merging="--time=10" # needs no GPU

say() {
    echo "perf.slurm.sh: $1" >&2
}

step=${1:-} run=${2:-}
case $step in
plan)
    code=0
    "$perfci" plan --base "$base" --committed --shards "$shards" --out "$run/plan.json" || code=$?
    echo "$code" >"$run/plan.exit"
    exit "$code"
    ;;
measure) # a task that was killed and requeued goes on with what it has measured, where it gets the same GPU
    shard=$SLURM_ARRAY_TASK_ID
    exec "$perfci" compare --shard "$run/plan.json:$shard/$shards" --out "$run/shard-$shard" --resume
    ;;
merge)
    set --
    for folder in "$run"/shard-*/; do
        if [ -s "$folder/results.json" ]; then set -- "$@" "$folder"; fi # of the others it is told that they are missing
    done
    code=3
    if [ ! -s "$run/plan.json" ]; then
        say "there is no plan: $run/plan.log"
        if [ -s "$run/plan.log" ]; then cat "$run/plan.log"; fi
        if [ "$(cat "$run/plan.exit")" = 2 ]; then code=2; fi
    elif [ $# -eq 0 ]; then
        say "none of $shards shards gave results: $run/shard-*.log"
    else
        code=0
        "$perfci" merge "$@" --out "$run/report" || code=$?
    fi
    case $code in 0 | 1 | 2) ;; *) code=3 ;; esac # such as 127: this node has no perfci
    echo "$code" >"$run/merge.exit"
    exit "$code"
    ;;
'') ;;
*)
    say "takes no arguments: what to change stands at its head"
    exit 2
    ;;
esac

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
root=$(git rev-parse --show-toplevel) || exit 2
cd "$root"
name=perf-$(date +%Y%m%d-%H%M%S)-$$
mkdir -p "$results/$name" || exit 3
run=$(cd "$results/$name" && pwd)
logs=$(printf '%s\n' "$run" | sed 's/%/%%/g') # sbatch puts numbers in place of %

submit() { # STEP [OPTION …]: prints the job's number
    step=$1
    shift
    sbatch --parsable --export=ALL --job-name="$name" --chdir="$root" --open-mode=append "$@" "$script" "$step" "$run"
}

give_up() {
    say "$1: cancelling the jobs $name"
    scancel --name="$name" || say "which failed: see squeue"
    exit "$2"
}

trap 'give_up interrupted 3' INT TERM
# shellcheck disable=SC2086 # options are words
plan=$(submit plan --output="$logs/plan.log" $measuring) || give_up "the plan cannot be submitted" 2
plan=${plan%%;*} # behind it may stand the name of a cluster
# shellcheck disable=SC2086
array=$(submit measure --dependency="afterok:$plan" --kill-on-invalid-dep=yes --array="1-$shards" --requeue \
    --output="$logs/shard-%a.log" $measuring) || give_up "the shards cannot be submitted" 2
array=${array%%;*}
say "jobs $plan (plan), $array (shards), and then the merge; results in $run"
# After the array however it ended: a shard that is lost is told, and not waited for.
# shellcheck disable=SC2086
submit merge --dependency="afterany:$array" --wait --output="$logs/merge.log" $merging >"$run/merge.job" &
ended=0
wait $! || ended=$? # what counts is what the merge wrote
if [ ! -s "$run/merge.job" ]; then give_up "the merge cannot be submitted" 2; fi
tries=0
until [ -s "$run/merge.exit" ] || [ "$tries" -ge 60 ]; do # some file systems show another node's file a minute late
    sleep 1
    tries=$((tries + 1))
done
if [ ! -s "$run/merge.exit" ]; then
    say "the job that merges ended without a verdict (sbatch: $ended): $run"
    exit 3
fi
if [ -r "$run/merge.log" ]; then cat "$run/merge.log"; fi
case $(cat "$run/merge.exit") in
0) exit 0 ;;
1) exit 1 ;;
2) exit 2 ;;
*) exit 3 ;;
esac
