#!/usr/bin/env bash
# What launch/tpu_vm.sh has every worker of a TPU VM do. All of it lies in ~/jaxbench:
#   src/   the checkout, in which the job runs; src/runs leads to runs/
#   venv/  what is installed
#   job/   the one job: its command, pid, log and exit code; lock: held while it runs
set -euo pipefail

# Seconds between copies to a bucket.
sync_s=${JAXBENCH_SYNC_S:-120}

say() { printf 'on_tpu_vm.sh: %s\n' "$*" >&2; }

# A lock and not the pid: after a restart of the machine the pid is another program's.
is_running() { ! flock --nonblock lock true; }

# Prints a Python that jaxbench runs on and that can make environments.
find_python() {
  local candidate
  for candidate in python3.12 python3.13 python3.11 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
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

# extras: takes the checkout in new/ and installs it.
set_up() {
  if is_running; then
    say "a job is running; the checkout that it began with stays"
    return
  fi
  rm -rf src
  mv new src
  mkdir -p runs
  ln -s ../runs src/runs
  if ! venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf venv
    local python
    if ! python=$(find_python); then
      install_python || true
      python=$(find_python) || { say "Python 3.12 could not be installed" && exit 1; }
    fi
    "$python" -m venv venv
  fi
  # Whatever pip ends with: 2 stands for bad input.
  venv/bin/python -m pip install -q --disable-pip-version-check -e "src[$1]" ||
    { say "pip could not install it" && exit 1; }
}

# bucket ('' for none), workdir ('' for jaxbench's own choice), the arguments of jaxbench.main:
# starts the job, or joins it if it was started before; ends as it ends. gcloud repeats the whole
# command when the connection drops.
run() {
  local command
  command=$(printf '%q ' "$@")
  exec 9>lock
  if [ -e job/command ] && [ "$(cat job/command)" = "$command" ] && { is_running || [ -e job/code ]; }; then
    say "this job was started before; its output follows from the beginning"
  elif flock --nonblock 9; then
    rm -rf job
    mkdir job
    printf '%s' "$command" >job/command
    : >job/log
    # Keeps the lock, whatever becomes of the connection.
    setsid nohup bash src/launch/on_tpu_vm.sh job "$@" >>job/log 2>&1 </dev/null &
    echo $! >job/pid
  else
    say "another job is running here, started with: $(cat job/command 2>/dev/null)"
    exit 75
  fi
  exec 9>&-
  tail -n +1 -f -s 0.2 --pid="$(cat job/pid)" job/log
  [ -e job/code ] || { say "the job was killed before it could say how it ended" && exit 1; }
  exit "$(cat job/code)"
}

# The job itself, in a session of its own; arguments as above.
job() {
  local bucket=$1 workdir=$2 code=0 syncing=
  shift 2
  if [ -n "$bucket" ]; then
    # Refuses to begin without: it would begin anew what lies in the bucket.
    download "$workdir" "$bucket" || { echo $? >job/code && exit 1; }
    keep_uploading "$workdir" "$bucket" &
    syncing=$!
  fi
  # A signal for all processes, as at the machine's end, leaves this one to wait for jaxbench.
  trap : TERM INT HUP
  (trap - TERM INT HUP && cd src && exec ../venv/bin/python -u -m jaxbench.main "$@") || code=$?
  if [ -n "$bucket" ]; then
    : >job/ended
    wait "$syncing" || true
    upload "$workdir" "$bucket" || {
      say "what was recorded last is not in $bucket"
      [ "$code" != 0 ] || code=1
    }
  fi
  echo "$code" >job/code
}

# workdir, bucket: brings what is there; nothing is, the first time.
download() {
  local there
  if there=$(gcloud storage ls "$2/$1/" 2>&1); then
    mkdir -p "$1"
    gcloud storage rsync "$2/$1" "$1" --recursive
  elif [[ $there != *"matched no objects"* ]]; then
    say "cannot read $2/$1: $there"
    return 1
  fi
}

# workdir, bucket: until the job has ended.
keep_uploading() {
  local second
  until [ -e job/ended ]; do
    for ((second = 0; second < sync_s; second++)); do
      [ ! -e job/ended ] || return 0
      sleep 1
    done
    upload "$1" "$2" || say "copying to $2 failed, and is tried again in $sync_s s"
  done
}

# workdir, bucket: first the checkpoints are held fast, then the records go, then the checkpoints: a
# checkpoint whose records are missing could not be gone on with.
upload() {
  [ -e "$1/run.json" ] || return 0
  rm -rf held && mkdir -p held
  # Where one is deleted just then, another round will do.
  [ ! -d "$1/checkpoints" ] || cp -al "$1/checkpoints" held/ || return
  gcloud storage rsync "$1" "$2/$1" --recursive --exclude='^checkpoints/' || return
  [ -d held/checkpoints ] || return 0
  gcloud storage rsync held/checkpoints "$2/$1/checkpoints" --recursive &&
    gcloud storage rsync held/checkpoints "$2/$1/checkpoints" --recursive \
      --delete-unmatched-destination-objects
}

# workdir or '': prints how the job ended and its run directory, if it made one.
report() {
  local folder=$1 code
  if ! code=$(cat job/code 2>/dev/null); then
    is_running && code=running || code=lost
  fi
  if [ -z "$folder" ]; then
    folder=$(find runs/ -name run.json -newer job/command -printf '%h\n' | sort | head -n 1)
  fi
  [ -e "$folder/run.json" ] || folder=
  echo "jaxbench-job $code $folder"
}

# What is fetched is no longer joined: the same command begins a new job.
forget() { is_running || rm -rf job; }

cd ~/jaxbench
"$@"
