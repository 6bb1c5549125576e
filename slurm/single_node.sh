#!/usr/bin/env bash
#SBATCH --job-name=spec_rl
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=4:00:00
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --export=ALL
# Written by `nemo-specrl submit`, site profile generic: a plain job script.
set -euo pipefail
early=
trap 'early=USR1' USR1
trap 'early=USR2' USR2
trap 'early=TERM' TERM

# Unset the exported variables that match $1 and not $2.
forget() {
  local name
  for name in $(compgen -e | grep -E "$1" | grep -vE "$2"); do unset "$name"; done
}
# What the submitter's own job, mpirun or torchrun has left: a mask of CPUs, servers, ranks.
OPTIONS='^(SACCT|SALLOC|SBATCH|SCONTROL|SLURM|SLURMD|SQUEUE|SRUN)_'
KEPT='^SLURM_(CLUSTERS|CONF|CONF_SERVER|JWT)$'
LAUNCHERS='^((HYDI|OMPI|ORTE|PALS|PET|PMI|PMI2|PMIX|PRTE|TORCHELASTIC)_.*|MPI_LOCAL.*|MV2_COMM_WORLD_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|NEMO_SPECRL_(ARRAY_.*|ATTEMPT.*|JOB_.*|PORT_BASE|RESTART_COUNT|SCRATCH|TIME_LIMIT))$'
forget '^(SLURM_(CPU_BIND|EXPORT_ENV|SRUN_|STEP_)|SRUN_)' "$KEPT"
forget "$LAUNCHERS" "$KEPT"
# sbatch --export=NONE, or a list of names, holds for this shell: a step gets all that is set here.
export SLURM_EXPORT_ENV=ALL

WORKDIR="$SLURM_SUBMIT_DIR"
TIME_LIMIT=4:00:00
REQUEUE=1
MAX_ATTEMPTS=50
CRASH_RETRIES=0
FORWARD_SIGNAL=1
STOPPED_EARLY=85
PORT_BASE=20000
PORT_BLOCKS=500
SCRATCH=/tmp

OUTPUT_DIR=runs/spec_rl
overrides=(experiment=spec_rl cluster.gpus_per_node=8 policy.tensor_parallel=2)

NODE_SHELL=$(cat << 'EOF'
trap '' USR1 USR2
export TMPDIR=$NEMO_SPECRL_SCRATCH/tmp TRITON_CACHE_DIR=$NEMO_SPECRL_SCRATCH/triton PET_NODE_RANK=${SLURM_NODEID:-0}
export TORCHINDUCTOR_CACHE_DIR=$NEMO_SPECRL_SCRATCH/inductor VLLM_CACHE_ROOT=$NEMO_SPECRL_SCRATCH/vllm
mkdir -p "$TMPDIR" "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR" "$VLLM_CACHE_ROOT"
exec "$@"
EOF
)

payload() {
  local command=(python -m torch.distributed.run --nnodes="${#nodes[@]}" --nproc-per-node=8 --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 -m nemo_specrl.cli train "${overrides[@]}")
  exec srun --overlap --kill-on-bad-exit=1 --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" --ntasks-per-node=1 \
    bash -c "$NODE_SHELL" node "${command[@]}"
}

# ---- The rest is the same in every script (nemo_specrl/cluster/batch_shell.py). ----

say() { printf '%s nemo-specrl: %s\n' "$(date '+%F %T')" "$*"; }

# What Slurm's commands are asked about. The last task of an array has the array's own id as its SLURM_JOB_ID, and
# `scontrol requeue` of that would restart every task.
job=${SLURM_JOB_ID:?this is a job script: submit it with sbatch}
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

# Our own copies: NeMo RL's ray.sub unsets every SLURM_ variable before its driver starts.
job_facts() {
  export NEMO_SPECRL_JOB_ID=$SLURM_JOB_ID NEMO_SPECRL_JOB_NODELIST=$SLURM_JOB_NODELIST
  export NEMO_SPECRL_ARRAY_JOB_ID=${SLURM_ARRAY_JOB_ID:-} NEMO_SPECRL_ARRAY_TASK_ID=${SLURM_ARRAY_TASK_ID:-}
  export NEMO_SPECRL_RESTART_COUNT=${SLURM_RESTART_COUNT:-0} NEMO_SPECRL_TIME_LIMIT=$TIME_LIMIT
  NEMO_SPECRL_JOB_START_TIME=$(job_epoch StartTime "${SLURM_JOB_START_TIME:-}")
  NEMO_SPECRL_JOB_END_TIME=$(job_epoch EndTime "${SLURM_JOB_END_TIME:-}")
  export NEMO_SPECRL_JOB_START_TIME NEMO_SPECRL_JOB_END_TIME
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-}
  [ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  if [ "${#nodes[@]}" = 1 ]; then MASTER_ADDR=127.0.0.1; else MASTER_ADDR=$(node_address "${nodes[0]}"); fi
  take_ports
  export MASTER_ADDR NEMO_SPECRL_PORT_BASE MASTER_PORT=$NEMO_SPECRL_PORT_BASE
  export NEMO_SPECRL_SCRATCH=$SCRATCH/nemo-specrl-$(id -u)-$SLURM_JOB_ID
}

# A time of this job in epoch seconds, empty where it is Unknown. Slurm itself is asked: before 23.02 it states no times
# in the environment, and what is there ($2) may be another job's.
job_epoch() {
  local text
  if text=$(scontrol show job "$job" --oneliner 2>/dev/null); then
    text=$(grep -o " $1=[^ ]*" <<< "$text" | cut -d= -f2) || return 0
    date -d "$text" +%s 2>/dev/null || true
  else
    echo "$2"
  fi
}

# 16 ports for this job: those of its id, else the next that are free. A lock keeps them from our other jobs until this
# shell ends; a look at what is listening keeps them from everybody else's.
take_ports() {
  local n file lock
  for ((n = 0; n < PORT_BLOCKS; n++)); do
    NEMO_SPECRL_PORT_BASE=$((PORT_BASE + 16 * ((SLURM_JOB_ID + n) % PORT_BLOCKS)))
    file=$SCRATCH/nemo-specrl-$(id -u)-ports-$NEMO_SPECRL_PORT_BASE
    { exec {lock}> "$file"; } 2>/dev/null || { say "cannot write to $SCRATCH (cluster.scratch)"; exit 1; }
    # Who held it last may have removed it meanwhile: a lock on a file without a name keeps nobody out.
    if flock --nonblock "$lock" && [ "$file" -ef "/proc/$$/fd/$lock" ]; then
      port_lock=$file
      ports_listening "$NEMO_SPECRL_PORT_BASE" || return 0
      free_ports
    fi
    exec {lock}>&-
  done
  say "all ports from $PORT_BASE on are taken (cluster.port_base)"
  exit 1
}

free_ports() { [ -z "${port_lock:-}" ] || rm -f -- "$port_lock"; port_lock=; }

# Whether one of the 16 ports from $1 on is listening on this node (state 0A), whatever its address.
ports_listening() {
  local port any=
  for ((port = $1; port < $1 + 16; port++)); do any+=$(printf '|%04X' "$port"); done
  grep -qE "^ *[0-9]+: [0-9A-F]+:(${any#|}) [0-9A-F:]+ 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

node_address() {
  local address
  address=$(scontrol show node "$1" --oneliner | grep -o ' NodeAddr=[^ ]*' | cut -d= -f2) || true
  echo "${address:-$1}"
}

# attempt_1, attempt_2, ... in the run's own folder; mkdir decides who takes which number.
next_attempt() {
  logs=$OUTPUT_DIR/slurm
  mkdir -p "$logs"
  local n=1
  until mkdir "$logs/attempt_$n" 2>/dev/null; do
    n=$((n + 1))
    [ "$n" -lt 100000 ] || { say "cannot make a folder in $logs"; exit 1; }
  done
  attempt=$n
  export NEMO_SPECRL_ATTEMPT=$n NEMO_SPECRL_ATTEMPT_DIR=$logs/attempt_$n
  ln -sfn "attempt_$n" "$logs/latest"
  echo "$job" > "$NEMO_SPECRL_ATTEMPT_DIR/job"
  root_job > "$NEMO_SPECRL_ATTEMPT_DIR/root"
  cp "$0" "$NEMO_SPECRL_ATTEMPT_DIR/job.sh"
  echo "$SLURM_JOB_NODELIST" > "$NEMO_SPECRL_ATTEMPT_DIR/nodes"
}

# The job that was submitted: this one, or, for a follow-up job, the first of the chain.
root_job() {
  local file
  for file in "$logs"/attempt_*/followed_by; do
    if [ "$(cat "$file" 2>/dev/null)" = "$job" ]; then cat "${file%/*}/root"; return; fi
  done
  echo "$job"
}

# Attempts of this submission: all of them, or (crashes) those that ended with an error of their own.
count_attempts() {
  local folder code root n=0
  root=$(cat "$NEMO_SPECRL_ATTEMPT_DIR/root")
  for folder in "$logs"/attempt_*; do
    [ "$(cat "$folder/root" 2>/dev/null)" = "$root" ] || continue
    if [ "$1" = crashes ]; then
      code=$(cat "$folder/exit_code" 2>/dev/null || echo 0)
      [ "$code" != 0 ] && [ "$code" != "$STOPPED_EARLY" ] || continue
    fi
    n=$((n + 1))
  done
  echo "$n"
}

# The warning of Slurm, a cancel or a preemption. The step gets the user signal: a TERM would make srun kill it at once
# (on a cancel Slurm itself sends TERM to the ranks). It is repeated, since a rank that still imports ignores it.
warned() {
  say "got $1: the trainer is to stop after its step"
  [ "$FORWARD_SIGNAL" = 1 ] && [ -z "${repeater:-}" ] || return 0
  local wait_s=$((started + 5 - SECONDS))  # an srun that has only just begun would die of the signal
  {
    [ "$wait_s" -le 0 ] || sleep "$wait_s"
    while kill -USR1 "$payload_pid" 2>/dev/null; do sleep 15; done
  } & repeater=$!
}

# `wait` returns when a trap runs: go on until the payload is gone, then ask for its code. Sets `code`.
wait_payload() {
  while kill -0 "$payload_pid" 2>/dev/null; do wait "$payload_pid" || true; done
  code=0
  wait "$payload_pid" || code=$?
  [ -z "${repeater:-}" ] || kill "$repeater" 2>/dev/null || true
}

# Only a job that Slurm still lets run may come back: a cancelled one must not.
again() {
  local state
  state=$(squeue --noheader --jobs "$job" --format %T 2>/dev/null) || state=unknown
  case $state in
    RUNNING*) ;;
    *) say "the job is ${state:-gone}: not started again"; return 0 ;;
  esac
  if [ "$(count_attempts all)" -ge "$MAX_ATTEMPTS" ]; then
    say "this was the last of $MAX_ATTEMPTS attempts (cluster.max_attempts): submit again to go on from the checkpoint"
    return 0
  fi
  if [ "$REQUEUE" = 1 ]; then
    say "requeue"
    trap 'exit "$code"' TERM  # Slurm now ends this shell
    if scontrol requeue "$job"; then sleep 300; fi
    say "requeue was refused: submitting a follow-up job"
  fi
  follow_up
}

# What describes this job would bend the options of the next one.
follow_up() (
  task=${SLURM_ARRAY_TASK_ID:-}
  forget "$OPTIONS" "$KEPT"
  id=$(sbatch --parsable --dependency="afterany:$job" ${task:+"--array=$task"} --output="${logs//%/%%}/slurm-%j.log" \
    "$NEMO_SPECRL_ATTEMPT_DIR/job.sh")
  id=${id%%;*}${task:+_$task}
  echo "$id" > "$NEMO_SPECRL_ATTEMPT_DIR/followed_by"
  say "job $id goes on after this one"
)

clean_scratch() {
  free_ports
  rm -rf -- "${NEMO_SPECRL_SCRATCH:?}"
  [ "${#nodes[@]}" = 1 ] || timeout 30 srun --overlap --ntasks-per-node=1 --ntasks="${#nodes[@]}" \
    rm -rf -- "$NEMO_SPECRL_SCRATCH" 2>/dev/null || true
}

main() {
  cd "$WORKDIR"
  mkdir -p "$OUTPUT_DIR"
  OUTPUT_DIR=$(cd "$OUTPUT_DIR" && pwd)
  job_facts
  next_attempt
  trap clean_scratch EXIT
  say "job $job, attempt $attempt on ${nodes[*]}, ends $(date -d "@$NEMO_SPECRL_JOB_END_TIME" '+%F %T' \
    2>/dev/null || echo 'at no known time'); log: $NEMO_SPECRL_ATTEMPT_DIR/output.log"
  if [ "$(count_attempts all)" -gt "$MAX_ATTEMPTS" ]; then
    say "more than $MAX_ATTEMPTS attempts (cluster.max_attempts): giving up"
    exit 1
  fi
  # In a background function `exec` replaces the subshell, so that payload_pid is srun itself.
  payload >> "$NEMO_SPECRL_ATTEMPT_DIR/output.log" 2>&1 < /dev/null & payload_pid=$!
  started=$SECONDS
  trap 'warned USR1' USR1
  trap 'warned USR2' USR2
  trap 'warned TERM' TERM
  [ -z "$early" ] || warned "$early before the start"
  wait_payload
  if [ -e "$NEMO_SPECRL_ATTEMPT_DIR/requeue" ]; then code=$STOPPED_EARLY; fi
  echo "$code" > "$NEMO_SPECRL_ATTEMPT_DIR/exit_code"
  clean_scratch
  case $code in
    0) say "finished" ;;
    "$STOPPED_EARLY")
      say "stopped early with a checkpoint: $(cat "$NEMO_SPECRL_ATTEMPT_DIR/requeue" 2>/dev/null)"
      again
      ;;
    *)
      say "failed with exit code $code; the end of its log:"
      tail -n 20 "$NEMO_SPECRL_ATTEMPT_DIR/output.log"
      if [ "$(count_attempts crashes)" -le "$CRASH_RETRIES" ]; then again; fi
      ;;
  esac
  exit "$code"
}

main
