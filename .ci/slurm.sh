#!/usr/bin/env bash
# A real Slurm (Debian's slurm-wlm and munge) on loopback, without systemd, for the tests marked `slurm`.
#
#   .ci/slurm.sh install     apt packages, where they are missing (root)
#   .ci/slurm.sh start       munged, slurmctld and two slurmd; prints `export SLURM_CONF=...` for eval
#   .ci/slurm.sh stop        ends the daemons that this script started, by their pid
#
# Usage in CI:  .ci/slurm.sh install && eval "$(.ci/slurm.sh start)" && pytest -m slurm; .ci/slurm.sh stop
set -euo pipefail

home=${NEMO_SPECRL_SLURM_HOME:-${TMPDIR:-/tmp}/nemo-specrl-slurm}
conf=$home/slurm.conf

install_packages() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
  [ "$(id -u)" = 0 ] || { echo "slurm.sh: install needs root" >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurm-wlm slurm-client munge >&2
}

alive() { [ -f "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

write_conf() {
  mkdir -p "$home"/{state,log,run} "$home"/spool-{1,2}
  # cred_expire: a requeued job waits that long before it may start again (120 s by default).
  # config_overrides: the nodes below claim more CPUs than a small CI machine has; tiny jobs share them.
  cat > "$conf" <<CONF
ClusterName=ci
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort=${NEMO_SPECRL_SLURM_PORT:-26817}
AuthType=auth/munge
AuthInfo=cred_expire=6
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool-%n
SlurmctldPidFile=$home/run/slurmctld.pid
SlurmdPidFile=$home/run/slurmd-%n.pid
SlurmctldLogFile=$home/log/slurmctld.log
SlurmdLogFile=$home/log/slurmd-%n.log
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

start() {
  write_conf
  export SLURM_CONF=$conf
  if ! munge -n </dev/null 2>/dev/null | unmunge >/dev/null 2>&1; then
    [ -f /etc/munge/munge.key ] || { (umask 077; head -c 128 /dev/urandom > /etc/munge/munge.key); chown munge: /etc/munge/munge.key; }
    install -d -o munge -g munge -m 755 /run/munge
    runuser -u munge -- munged --pid-file=/run/munge/munged.pid >&2
    cp /run/munge/munged.pid "$home/run/munged.pid"
  fi
  alive "$home/run/slurmctld.pid" || slurmctld -c -f "$conf" >&2
  for node in node1 node2; do
    alive "$home/run/slurmd-$node.pid" || slurmd -N "$node" -f "$conf" >&2
  done
  for _ in $(seq 60); do
    if [ "$(sinfo -h -N -t idle,mixed,allocated -o %N 2>/dev/null | sort -u | wc -l)" = 2 ]; then
      echo "export SLURM_CONF=$conf"
      return
    fi
    sleep 0.5
  done
  echo "slurm.sh: the nodes did not come up; see $home/log" >&2
  sinfo >&2 || true
  tail -n 20 "$home"/log/*.log >&2
  exit 1
}

stop() {
  local name pid
  for name in slurmd-node1 slurmd-node2 slurmctld munged; do
    alive "$home/run/$name.pid" || continue
    pid=$(cat "$home/run/$name.pid")
    kill "$pid"
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    rm -f "$home/run/$name.pid"
  done
}

case ${1:-} in
  install) install_packages ;;
  start) start ;;
  stop) stop ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
