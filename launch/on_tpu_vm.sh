#!/usr/bin/env bash
# Runs one jaxbench command on a worker of a Cloud TPU VM, whose home folder has jaxbench.tgz
# (git archive --format=tar.gz --output=jaxbench.tgz HEAD):
#
#   [EXTRAS=tpu] bash on_tpu_vm.sh --workdir=runs/first --experiment=cnn10
#
# The job does not need the connection, and gcloud repeats the command if that breaks: the same
# command joins the job, prints its output from the beginning and ends as it ends; after SIGTERM
# (exit code 143) it starts again. docs/howto/tpu-vm.md says how to send it. It runs in ~/jaxbench:
#   src/, venv/  the checkout, and what is installed
#   job/         the one job: its command, pid, log and exit code; lock: held while it runs
set -euo pipefail

say() { printf 'on_tpu_vm.sh: %s\n' "$*" >&2; }

# The machine's own Python is too old.
install() {
  export PATH="$HOME/.local/bin:$PATH"
  rm -rf src && mkdir src && tar -xzf ~/jaxbench.tgz -C src &&
    { command -v uv >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q uv; } &&
    { venv/bin/python -m pip --version >/dev/null 2>&1 ||
      { rm -rf venv && uv venv -q --seed --python 3.12 venv; }; } &&
    venv/bin/python -m pip install -q -e "src[${EXTRAS:-tpu}]"
}

[[ " $*" == *" --workdir="* ]] || { say "give --workdir=runs/NAME: a job that starts again needs it" && exit 2; }
script=$(realpath "$0") command=$(printf '%q ' "$@")
mkdir -p ~/jaxbench && cd ~/jaxbench
if [ "${1-}" = job ]; then
  # After an installation that failed the same command starts again.
  install && code=0 || { code=$? && rm job/command; }
  [ "$code" != 0 ] || venv/bin/python -u -m jaxbench.main "${@:2}" || code=$?
  echo "$code" >job/code
  exit
fi
exec 9>lock
if [ "$(cat job/command 2>/dev/null)" = "$command" ] &&
  { ! flock --nonblock 9 || { [ -e job/code ] && [ "$(cat job/code)" != 143 ]; }; }; then
  say "this job was started before; its output follows from the beginning"
elif flock --nonblock 9; then
  rm -rf job && mkdir job && : >job/log && printf '%s' "$command" >job/command
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
