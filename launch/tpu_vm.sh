#!/usr/bin/env bash
# Runs one jaxbench command on a Cloud TPU VM: makes the TPU, installs this checkout on all of its
# workers, runs the command on each of them, and fetches the run directory.
#
#   launch/tpu_vm.sh --name=bench --zone=us-central1-a --type=v5litepod-8 -- \
#     --experiment=resnet50_synthetic --mode=throughput
#
# --help says the rest. Needs bash (3.2 or later), git and gcloud, with a project and an account.
set -euo pipefail

usage() {
  cat <<'END'
launch/tpu_vm.sh --name=NAME --zone=ZONE --type=TYPE [flags] -- [flags of jaxbench.main]

  --name=NAME        the TPU VM; one of this name is used again, else it is made
  --zone=ZONE        such as us-central1-a
  --type=TYPE        --accelerator-type, such as v5litepod-8, v6e-16, v4-8
  --version=VERSION  the image; default what Google names for the type
  --project=PROJECT  default gcloud's own
  --spot             cheaper, and may be taken away at any time
  --queued           asks for it as a queued resource and waits until there is one
  --bucket=gs://B    keeps the run directory below gs://B/ too, every two minutes and at the end, and
                     begins with what lies there; needs --workdir; for TPUs of one host
  --extras=tpu       of the package, such as tpu,prepare for data that TFDS is to download
  --delete           deletes the TPU at the end, after a failed run too; never before the run
                     directory is here
  --poll_s=15        seconds between looks at a TPU that is being made
  --dry_run          prints every gcloud command, runs none

The command runs in the checkout on the TPU VM; --workdir, if given, lies below runs/. The run
directory comes to the same path below the folder in which you start this.

The job does not need the connection: after Ctrl-C or a lost one, the same command joins it, prints
its output from the beginning and fetches the result. Training that is to go on where it was stopped
(a preempted --spot TPU, exit code 143) has --workdir=runs/X --resume=auto, and --bucket, for the disk
of a preempted TPU is lost; then the same command again.

Exit code: the job's; that of the gcloud command which failed; 2 bad input.
END
}

say() { printf 'tpu_vm.sh: %s\n' "$*" >&2; }
bad() { say "$*" && exit 2; }

# Prints words as a POSIX shell has to be given them.
quoted() {
  local word text='' quote="'" escaped="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//$quote/$escaped}'"
    text="$text${text:+ }$word"
  done
  printf '%s' "$text"
}

name='' zone='' type='' version='' project='' bucket='' extras=tpu poll_s=15
spot='' queued='' delete='' dry_run=''

while [ $# -gt 0 ]; do
  case $1 in
    --) break ;;
    --help) usage && exit 0 ;;
    --name=* | --zone=* | --type=* | --version=* | --project=* | --bucket=* | --extras=* | --poll_s=*)
      flag=${1%%=*}
      printf -v "${flag#--}" '%s' "${1#*=}"
      ;;
    --spot | --queued | --delete | --dry_run) printf -v "${1#--}" yes ;;
    --name | --zone | --type | --version | --project | --bucket | --extras | --poll_s)
      bad "$1 ${2-}: write it as $1=${2-VALUE}"
      ;;
    *) bad "$1: no such flag (--help); flags of jaxbench.main come after --" ;;
  esac
  shift
done
[ $# -gt 1 ] || bad "give the flags of jaxbench.main after --, such as -- --experiment=quickstart"
shift

for flag in name zone type; do
  [ -n "${!flag}" ] || bad "--$flag is missing (--help)"
done
[[ $name =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
  bad "--name=$name: must be lower-case letters, digits and -, begin with a letter, at most 63"
[[ $zone =~ ^[a-z0-9-]+$ ]] || bad "--zone=$zone: must be a zone such as us-central1-a"
[[ $type =~ ^[a-z0-9-]+$ ]] || bad "--type=$type: must be an accelerator type such as v5litepod-8"
[[ $project =~ ^[a-z0-9:.-]*$ ]] || bad "--project=$project: must be a project's id"
[[ $extras =~ ^[a-z0-9]+(,[a-z0-9]+)*$ ]] || bad "--extras=$extras: must be names such as tpu,prepare"
[[ $poll_s =~ ^[0-9]+([.][0-9]+)?$ ]] || bad "--poll_s=$poll_s: must be a number of seconds"
if [ -z "$version" ]; then
  case $type in
    v2-* | v3-* | v4-*) version='tpu-ubuntu2204-base' ;;
    v5litepod-*) version=v2-alpha-tpuv5-lite ;;
    v5p-*) version=v2-alpha-tpuv5 ;;
    v6e-*) version=v2-alpha-tpuv6e ;;
    *) bad "--type=$type: its image is not known here, give --version" ;;
  esac
fi
[[ $version =~ ^[a-z0-9._-]+$ ]] || bad "--version=$version: must be an image such as v2-alpha-tpuv6e"

workdir='' resume='' meeting='' experiment=''
for ((i = 1; i <= $#; i++)); do
  # One dash or two, as jaxbench.main takes them.
  word=${!i}
  [[ $word != -[!-]* ]] || word=-$word
  next=$((i + 1))
  case $word in
    --workdir) workdir=${!next-} ;;
    --workdir=*) workdir=${word#*=} ;;
    --resume | --resume=*) resume=$word ;;
    --experiment) experiment=${!next-} ;;
    --experiment=*) experiment=${word#*=} ;;
    --distributed | --distributed=* | --coordinator_address | --coordinator_address=* | \
      --local_processes | --local_processes=*) meeting=yes ;;
  esac
done
workdir=${workdir%/}
if [ -n "$workdir" ]; then
  [[ $workdir =~ ^runs(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$ ]] ||
    bad "--workdir=$workdir: must lie below runs/, such as runs/first; letters, digits and . _ - only"
fi
if [ -n "$bucket" ]; then
  bucket=${bucket%/}
  [[ $bucket =~ ^gs://[a-z0-9][a-zA-Z0-9._/-]*$ ]] || bad "--bucket=$bucket: must be gs://BUCKET or gs://BUCKET/FOLDER"
  [ -n "$workdir" ] || bad "--bucket=$bucket: give jaxbench.main a --workdir too, by which it lies there"
fi
# Told here and not by jaxbench, on a TPU that has been made and paid for by then.
[ -n "$experiment" ] || bad "no --experiment after --: give one, such as -- --experiment=quickstart"
file=${experiment%%:*}
case $file in
  *.py | */*) ;;
  *) file=experiments/$file.py ;;
esac
[ -n "$dry_run" ] || command -v gcloud >/dev/null || bad "gcloud is not on PATH: install the Google Cloud CLI"

tpu=(gcloud compute tpus tpu-vm)
queue=(gcloud compute tpus queued-resources)
where=(--zone="$zone")
[ -z "$project" ] || where+=(--project="$project")
# Whether the TPU was there before or is now, whether something may run on it, what is safe.
there='' made='' begun='' fetched=''

# what it is for, command: runs it, or only prints it; a failure ends everything, with its exit code.
step() {
  local what=$1 code=0
  shift
  say "$what"
  if [ -n "$dry_run" ]; then
    quoted "$@" && echo
    return
  fi
  "$@" || code=$?
  [ "$code" = 0 ] || give_up "$what" "$code"
}

give_up() {
  say "failed: $1 (exit code $2)"
  finish "$2"
}

# exit code: deletes the TPU if that was asked for and loses nothing, and ends.
finish() {
  local remove
  if [ -n "$queued" ]; then
    remove=("${queue[@]}" delete "$name" "${where[@]}" --force --async --quiet)
  else
    remove=("${tpu[@]}" delete "$name" "${where[@]}" --async --quiet)
  fi
  if [ -n "$fetched" ] || { [ -n "$made" ] && [ -z "$begun" ]; }; then
    if [ -n "$delete" ]; then
      # Not a step: a failure here does not come back here.
      say "deleting $name"
      if [ -n "$dry_run" ]; then
        quoted "${remove[@]}" && echo
      elif ! "${remove[@]}"; then
        say "failed: deleting $name; it costs money until it is deleted"
        [ "$1" != 0 ] || exit 1
      fi
      exit "$1"
    fi
  elif [ -n "$delete" ] && [ -n "$there" ]; then
    say "not deleted, for something on it might be lost"
  fi
  [ -z "$there$made" ] || [ -n "$dry_run" ] || say "$name is still there and costs money; to delete it: $(quoted "${remove[@]}")"
  exit "$1"
}

# kind of thing, format: sets `state` and what else the format asks for, '' where it does not exist.
look_at() {
  local code=0 errors
  errors=$(mktemp)
  case $1 in
    queue) set -- "${queue[@]}" describe "$name" "${where[@]}" --format="value($2)" ;;
    tpu) set -- "${tpu[@]}" describe "$name" "${where[@]}" --format="value($2)" ;;
  esac
  if [ -n "$dry_run" ]; then
    quoted "$@" && echo
    state=
    return
  fi
  state=$("$@" 2>"$errors") || code=$?
  if [ "$code" != 0 ]; then
    state=
    if ! grep -q NOT_FOUND "$errors"; then
      cat "$errors" >&2
      rm -f "$errors"
      give_up "looking for $name" "$code"
    fi
  fi
  rm -f "$errors"
}

make_tpu() {
  local flags=()
  [ -z "$spot" ] || flags+=(--spot)
  if [ -n "$queued" ]; then
    step "asking for $name" "${queue[@]}" create "$name" --node-id="$name" "${where[@]}" \
      --accelerator-type="$type" --runtime-version="$version" ${flags[@]+"${flags[@]}"}
  else
    step "making $name" "${tpu[@]}" create "$name" "${where[@]}" \
      --accelerator-type="$type" --version="$version" ${flags[@]+"${flags[@]}"}
  fi
  made=yes
}

remove_dead() {
  say "$name is $state: it is deleted and made again"
  if [ -n "$queued" ]; then
    step "deleting the old $name" "${queue[@]}" delete "$name" "${where[@]}" --force --quiet
  else
    step "deleting the old $name" "${tpu[@]}" delete "$name" "${where[@]}" --quiet
  fi
}

# Returns once there is a TPU VM that is ready.
await_tpu() {
  local kind=tpu before=''
  [ -z "$queued" ] || kind=queue
  say "looking for $name"
  while :; do
    if [ "$kind" = queue ]; then look_at queue state.state; else look_at tpu state; fi
    case $state in
      '')
        # A queued resource is there as soon as it is asked for, a TPU when `create` returns.
        [ -z "$made" ] || [ -n "$dry_run" ] || give_up "making $name: it is gone again" 1
        make_tpu
        [ -z "$dry_run" ] || return 0
        continue
        ;;
      READY | ACTIVE)
        there=yes
        return 0
        ;;
      PREEMPTED | TERMINATED | SUSPENDED)
        [ -z "$made" ] || give_up "making $name: it is $state again" 1
        remove_dead
        make_tpu
        continue
        ;;
      CREATING | STARTING | RESTARTING | REIMAGING | REPAIRING | UNHIDING | ACCEPTED | \
        PROVISIONING | WAITING_FOR_RESOURCES | DELETING | STOPPING | SUSPENDING) ;;
      *) give_up "waiting for $name: its state is $state" 1 ;;
    esac
    [ "$state" = "$before" ] || say "$name is $state; waiting"
    before=$state
    sleep "$poll_s"
  done
}

interrupted() {
  say "stopped here; $name and what runs on it go on, and the same command joins it"
  exit 130
}

on() { # worker, command line for its shell: sets `ssh`, the command that has it run there
  ssh=("${tpu[@]}" ssh "$name" "${where[@]}" --worker="$1" --command="$2")
}

cd_back=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse --short HEAD 2>/dev/null) || bad "$PWD: is no git checkout, of which the tracked files are sent"
# Variant, fields and flags can be checked only where jaxbench is installed.
check='
from jaxbench.cli import entry_point, main_flags

def check(spec, overrides):
    experiment = entry_point.load_experiment(spec, overrides)
    main_flags.reads_data(experiment, main_flags.chosen_mode(experiment))

entry_point.run_with_experiment(check)'
check_experiment() {
  local python
  git cat-file -e "HEAD:${file#./}" 2>/dev/null ||
    bad "--experiment=$experiment: no $file in the commit $commit, which is what is sent"
  for python in python python3; do
    if "$python" -c 'import jaxbench.cli.entry_point' 2>/dev/null; then
      "$python" -c "$check" "$@" || finish $?
      return
    fi
  done
  say "jaxbench is not installed here: the flags after --experiment=$experiment are not checked"
}
# A file elsewhere on the TPU VM cannot be seen from here.
case $file in
  /* | "~"*) ;;
  *) check_experiment "$@" ;;
esac
[ -z "$(git status --porcelain --untracked-files=no)" ] || say "changes that are not committed are not sent"

trap interrupted INT
await_tpu
# The workers of a slice have to meet; a single host has none to meet.
if [ -n "$dry_run" ]; then
  [ -n "$meeting" ] || say "on a TPU of several hosts --distributed=auto is added to the command"
else
  look_at tpu 'networkEndpoints.len()'
  [[ $state =~ ^[0-9]+$ ]] || give_up "counting the hosts of $name" 1
  if [ "$state" -gt 1 ]; then
    [ -z "$bucket" ] || { say "--bucket is for TPUs of one host, $name has $state" && finish 2; }
    [ -n "$meeting" ] || set -- "$@" --distributed=auto
  fi
fi

packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
git archive --format=tar.gz --output="$packed/jaxbench.tgz" HEAD
cd "$cd_back"
step "sending the checkout ($commit)" "${tpu[@]}" scp "$packed/jaxbench.tgz" "$name:jaxbench.tgz" \
  "${where[@]}" --worker=all
on all "rm -rf jaxbench/new && mkdir -p jaxbench/new && tar -xzf jaxbench.tgz -C jaxbench/new && \
bash jaxbench/new/launch/on_tpu_vm.sh set_up $(quoted "$extras")"
step "installing it" "${ssh[@]}"

# From here on something may run there that deleting would end.
begun=yes
on all "bash jaxbench/src/launch/on_tpu_vm.sh run $(quoted "$bucket" "$workdir" "$@")"
say "running it"
code=0
if [ -n "$dry_run" ]; then
  quoted "${ssh[@]}" && echo
else
  "${ssh[@]}" || code=$?
fi

# on_tpu_vm.sh has said which.
[ "$code" != 75 ] || give_up "another job runs on $name" 75

on 0 "bash jaxbench/src/launch/on_tpu_vm.sh report $(quoted "$workdir")"
if [ -n "$dry_run" ]; then
  quoted "${ssh[@]}" && echo
  job_code=0 folder=${workdir:-runs/EXPERIMENT/TIME}
else
  reported=$("${ssh[@]}" | grep '^jaxbench-job ') || reported='jaxbench-job unknown'
  read -r _ job_code folder <<<"$reported"
fi
case $job_code in
  unknown | running)
    look_at tpu state
    say "failed: running it (exit code $code): the connection was lost, $name is ${state:-gone}"
    if [ -n "$bucket" ] && [ -n "$resume" ]; then
      say "the same command again goes on"
    else
      say "the same command again joins the job where $name is still there"
      [ -z "$spot" ] || say "what a preempted TPU had on its disk is lost (--bucket keeps it, --resume=auto goes on with it)"
    fi
    [ "$code" != 0 ] || code=1
    finish "$code"
    ;;
  lost) [ "$code" != 0 ] || code=1 ;;
  0) ;;
  # gcloud's is the first worker's that failed, or its own.
  *) code=$job_code ;;
esac
[ "$code" = 0 ] || say "failed: running it (exit code $code)"
[ "$code" != 143 ] || say "it was stopped by SIGTERM: with --workdir and --resume=auto the same command goes on"

if [ -n "$folder" ]; then
  [[ $folder =~ ^runs/[A-Za-z0-9._/-]+$ ]] || give_up "fetching jaxbench/$folder: fetch it by hand" 1
  [ -n "$dry_run" ] || mkdir -p "$(dirname "$folder")"
  step "fetching $folder" "${tpu[@]}" scp "$name:jaxbench/$folder" "$(dirname "$folder")" \
    "${where[@]}" --worker=0 --recurse
fi
fetched=yes
if [ -z "$delete" ]; then
  on all "bash jaxbench/src/launch/on_tpu_vm.sh forget"
  step "tidying up" "${ssh[@]}"
fi
finish "$code"
