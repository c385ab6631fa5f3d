#!/usr/bin/env bash
# Runs one jaxbench command on a worker of a Cloud TPU VM, whose home folder has jaxbench.tgz
# (git archive --format=tar.gz --output=jaxbench.tgz HEAD):
#
#   [BUCKET=gs://B/FOLDER] [EXTRAS=tpu] bash on_tpu_vm.sh --workdir=runs/first --experiment=cnn10
#
# The job does not need the connection. The same command joins it, prints its output from the
# beginning and ends as it ends; after SIGTERM (exit code 143) it starts again. With BUCKET the run
# directory is copied there every two minutes and at the end, and is fetched before the start.
# docs/howto/tpu-vm.md says how to send it. All of it lies in ~/jaxbench:
#   src/   the checkout, in which the job runs; src/runs leads to runs/
#   venv/  what is installed
#   job/   the one job: its command, pid, log and exit code; lock: held while it runs
set -euo pipefail

bucket=${BUCKET:-}

say() { printf 'on_tpu_vm.sh: %s\n' "$*" >&2; }

# Prints a Python that jaxbench runs on and that can make environments.
find_python() {
  local candidate
  for candidate in python3.12 python3.13 python3.11 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11, 4))' \
      >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Ubuntu 22.04, of which TPU VM images are made, has Python 3.10.
install_python() {
  say "no Python 3.11 or later here: installing 3.12"
  local apt=(sudo apt-get -q -y -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update
  # Ubuntu 24.04 has it; for 22.04 the Python team's archive does.
  "${apt[@]}" install python3.12 python3.12-venv || {
    sudo add-apt-repository -y ppa:deadsnakes/ppa
    "${apt[@]}" install python3.12 python3.12-venv
  }
}

install() {
  rm -rf src && mkdir -p src runs && tar -xzf ~/jaxbench.tgz -C src && ln -s ../runs src/runs || return
  if ! venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf venv
    local python
    python=$(find_python) || { install_python && python=$(find_python); } ||
      { say "Python 3.12 could not be installed" && return 1; }
    "$python" -m venv venv || return
  fi
  venv/bin/python -m pip install -q --disable-pip-version-check -e "src[${EXTRAS:-tpu}]"
}

# Brings what is in the bucket; nothing is, the first time.
download() {
  local listed
  if listed=$(gcloud storage ls "$bucket/$workdir/" 2>&1); then
    mkdir -p "$workdir"
    gcloud storage rsync "$bucket/$workdir" "$workdir" --recursive
  elif [[ $listed != *"matched no objects"* ]]; then
    say "cannot read $bucket/$workdir: $listed"
    return 1
  fi
}

# First the checkpoints are held fast, then the records go, then the checkpoints: a checkpoint whose
# records are missing could not be resumed.
upload() {
  [ -n "$bucket" ] && [ -e "$workdir/run.json" ] || return 0
  rm -rf held && mkdir -p held
  # If one is deleted just then, another round will do.
  [ ! -d "$workdir/checkpoints" ] || cp -al "$workdir/checkpoints" held/ || return
  gcloud storage rsync "$workdir" "$bucket/$workdir" --recursive --exclude='^checkpoints/' || return
  [ -d held/checkpoints ] || return 0
  gcloud storage rsync held/checkpoints "$bucket/$workdir/checkpoints" --recursive &&
    gcloud storage rsync held/checkpoints "$bucket/$workdir/checkpoints" --recursive \
      --delete-unmatched-destination-objects
}

# The job itself, in a session of its own.
job() {
  local code=0 main
  # Without what lies in the bucket it would begin anew.
  if ! install || { [ -n "$bucket" ] && ! download; }; then
    echo 1 >job/code
    return
  fi
  # A signal for all processes, as at the machine's end, leaves this one to wait for jaxbench.
  trap : TERM INT HUP
  (trap - TERM INT HUP && cd src && exec ../venv/bin/python -u -m jaxbench.main "$@") &
  main=$!
  while kill -0 "$main" 2>/dev/null; do
    timeout "${SYNC_S:-120}" tail --pid="$main" -s 0.2 -f /dev/null || upload || say "copying failed"
  done
  wait "$main" || code=$?
  upload || { say "what was recorded last is not in $bucket" && code=$((code ? code : 1)); }
  echo "$code" >job/code
}

workdir='' start=''
[ "${1-}" != job ] || { start=yes && shift; }
for word in "$@"; do [[ $word != --workdir=* ]] || workdir=${word#*=}; done
if ! [[ $workdir =~ ^runs(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$ && $bucket =~ ^(gs://[a-z0-9][a-zA-Z0-9._/-]*)?$ ]]; then
  say "give --workdir=runs/NAME, and BUCKET=gs://BUCKET/FOLDER or none"
  exit 2
fi
script=$(realpath "$0")
mkdir -p ~/jaxbench && cd ~/jaxbench
[ -z "$start" ] || { job "$@" && exit; }
command=$(printf '%q ' "$bucket" "$@")
exec 9>lock
if [ "$(cat job/command 2>/dev/null)" = "$command" ] &&
  { ! flock --nonblock 9 || { [ -e job/code ] && [ "$(cat job/code)" != 143 ]; }; }; then
  say "this job was started before; its output follows from the beginning"
elif flock --nonblock 9; then
  rm -rf job && mkdir job && : >job/log
  printf '%s' "$command" >job/command
  # Keeps the lock, whatever becomes of the connection.
  setsid nohup bash "$script" job "$@" >>job/log 2>&1 </dev/null &
  echo $! >job/pid
else
  say "another job is running here, started with: $(cat job/command)"
  exit 75
fi
exec 9>&-
tail -n +1 -f -s 0.2 --pid="$(cat job/pid)" job/log
[ -e job/code ] || { say "the job was killed before it could say how it ended" && exit 1; }
exit "$(cat job/code)"
