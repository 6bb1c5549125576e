#!/usr/bin/env bash
# A real Slurm (Debian's slurm-wlm and munge) on loopback, without systemd, for the tests marked `slurm`.
#
#   . .ci/slurm.sh           sourced, as .ci/run does: install, start, export SLURM_CONF, stop at exit
#   .ci/slurm.sh install     apt packages, where they are missing (root)
#   .ci/slurm.sh start       munged, slurmctld and two slurmd; prints `export SLURM_CONF=...` for eval
#   .ci/slurm.sh stop        ends the daemons that this script started, by their pid
set -euo pipefail

slurm_home=${NEMO_SPECRL_SLURM_HOME:-${TMPDIR:-/tmp}/nemo-specrl-slurm}
slurm_conf=$slurm_home/slurm.conf

slurm_install() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
  [ "$(id -u)" = 0 ] || { echo "slurm.sh: install needs root" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurm-wlm slurm-client munge >&2
}

slurm_alive() { [ -f "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

slurm_write_conf() {
  mkdir -p "$slurm_home"/{state,log,run} "$slurm_home"/spool-{1,2}
  # cred_expire: a requeued job waits that long before it may start again (120 s by default).
  # config_overrides: the nodes below claim more CPUs than a small CI machine has; tiny jobs share them.
  cat > "$slurm_conf" <<CONF
ClusterName=ci
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort=${NEMO_SPECRL_SLURM_PORT:-26817}
AuthType=auth/munge
AuthInfo=cred_expire=6
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation=$slurm_home/state
SlurmdSpoolDir=$slurm_home/spool-%n
SlurmctldPidFile=$slurm_home/run/slurmctld.pid
SlurmdPidFile=$slurm_home/run/slurmd-%n.pid
SlurmctldLogFile=$slurm_home/log/slurmctld.log
SlurmdLogFile=$slurm_home/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0,bf_interval=2
MinJobAge=3600
KillWait=20
InactiveLimit=0
JobRequeue=1
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=26821 CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=26822 CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
CONF
}

slurm_start() {
  slurm_write_conf
  export SLURM_CONF=$slurm_conf
  if ! munge -n </dev/null 2>/dev/null | unmunge >/dev/null 2>&1; then
    [ -f /etc/munge/munge.key ] || { (umask 077; head -c 128 /dev/urandom > /etc/munge/munge.key); chown munge: /etc/munge/munge.key; }
    install -d -o munge -g munge -m 755 /run/munge
    runuser -u munge -- munged --pid-file=/run/munge/munged.pid >&2
    cp /run/munge/munged.pid "$slurm_home/run/munged.pid"
  fi
  slurm_alive "$slurm_home/run/slurmctld.pid" || slurmctld -c -f "$slurm_conf" >&2
  for node in node1 node2; do
    slurm_alive "$slurm_home/run/slurmd-$node.pid" || slurmd -N "$node" -f "$slurm_conf" >&2
  done
  for _ in $(seq 60); do
    if [ "$(sinfo -h -N -t idle,mixed,allocated -o %N 2>/dev/null | sort -u | wc -l)" = 2 ]; then
      echo "export SLURM_CONF=$slurm_conf"
      return
    fi
    sleep 0.5
  done
  echo "slurm.sh: the nodes did not come up; see $slurm_home/log" >&2
  sinfo >&2 || true
  tail -n 20 "$slurm_home"/log/*.log >&2
  exit 1
}

slurm_stop() {
  local name pid
  for name in slurmd-node1 slurmd-node2 slurmctld munged; do
    slurm_alive "$slurm_home/run/$name.pid" || continue
    pid=$(cat "$slurm_home/run/$name.pid")
    kill "$pid"
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    rm -f "$slurm_home/run/$name.pid"
  done
}

# Sourced by a script with arguments of its own, $1 would be that script's.
action=${1:-}
[ "${BASH_SOURCE[0]}" = "$0" ] || action=
case $action in
  install) slurm_install ;;
  start) slurm_start ;;
  stop) slurm_stop ;;
  "")
    if [ "${BASH_SOURCE[0]}" = "$0" ]; then echo "usage: $0 install|start|stop" >&2; exit 2; fi
    slurm_install
    settings=$(slurm_start)
    eval "$settings"
    trap slurm_stop EXIT
    ;;
  *) echo "usage: $0 install|start|stop" >&2; exit 2 ;;
esac
