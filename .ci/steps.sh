# The steps of .ci/run, to be sourced with `minutes` set: no step goes beyond them, a red one does not keep the next from
# running, and the end names what was red and what was left out.
end=$((SECONDS + minutes * 60))
parts=() red=() left_out=()
later=()  # what failed and passed on a later try
step_log=$(mktemp)  # what the last step printed
not_run=$(mktemp)   # what tests said that they could not do here
trap 'rm -f "$step_log" "$not_run"' EXIT

# run_step NAME COMMAND...: runs a command for as long as there is time. step_end says how it went: green, red, or cut
# (with what of it was left out); step_code is its exit code, step_seconds the time it took.
run_step() {
  local name=$1 begin=$SECONDS left=$((end - SECONDS))
  shift
  step_end=green step_code=0 step_seconds=0
  : >"$step_log"
  if [[ $left -le 0 ]]; then
    step_end=cut
    left_out+=("$name: the $minutes minutes were over before it began")
    return
  fi
  echo "== $name: $*"
  timeout --kill-after=20 "$left" "$@" </dev/null 2>&1 | tee "$step_log" || step_code=${PIPESTATUS[0]}
  step_seconds=$((SECONDS - begin))
  if [[ $step_code -ne 0 && $SECONDS -ge $end && ($step_code -eq 124 || $step_code -eq 137) ]]; then
    step_end=cut
    left_out+=("$name: the $minutes minutes were over after $step_seconds s of it")
  elif [[ $step_code -ne 0 ]]; then
    step_end=red
  fi
}

# call_red NAME WHY: the step NAME is red.
call_red() {
  red+=("$1: $2")
  echo "== red: $1: $2"
}

# build_step NAME FOLDER COMMAND...: a build in FOLDER; keeps which files took longest. What needs it asks built.
build_step() {
  local name=$1 folder=$2
  shift 2
  run_step "$name" "$@"
  built=$step_end
  [[ $step_end != red ]] || call_red "$name" "exit code $step_code"
  [[ -s $folder/.ninja_log ]] || return 0
  parts+=("$name: $step_end, $step_seconds s; the slowest: $(awk '/\.o\t/ { print int(($2 - $1) / 1000) " s " $4 }' "$folder/.ninja_log" |
    sort -rnu | sed -n '1,3 { s|CMakeFiles/||; s|\.dir/|/|; p }' | paste -sd ';' | sed 's/;/; /g')")
}

# test_step NAME FOLDER COMMAND...: a command that ends with ctest's closing lines over the build in FOLDER, which the
# last build_step made. A test that failed is red also where the step was cut.
test_step() {
  local name=$1 folder=$2 failed
  shift 2
  if [[ $built != green ]]; then
    left_out+=("$name: what it needs was not built")
    return
  fi
  run_step "$name" "$@"
  failed=$(grep -aoE '[^ ]+ \.+ ?\*\*\*(Failed|Timeout|Exception[^ ]*)' "$step_log" | sed 's/ \.\.*/ /' | sort -u | paste -sd ';' || true)
  if [[ $step_end == red || ($step_end == cut && -n $failed) ]]; then
    call_red "$name" "${failed:-exit code $step_code}"
  fi
  parts+=("$name: $step_end, $step_seconds s; $(grep -a -m 1 'tests passed' "$step_log" || true)")
  mapfile -t -O "${#later[@]}" later < <(sed -n "s/^passed on a later try: /$name: /p" "$step_log")
  sed -n 's/^did not run here: //p' "$folder"/Testing/Temporary/LastTest.log >>"$not_run" 2>/dev/null || true
  grep -aoE '[^ ]+(@gpu|_on_gpu_test) \.+\*\*\*Skipped' "$step_log" | sed -E 's/ \.+\*\*\*Skipped/: it needs a GPU/' >>"$not_run" || true
}

# finish: what a reader of the log wants to know first; the exit code of it all.
finish() {
  if [[ -s $not_run ]]; then
    echo '== what this machine could not run'
    sort -u "$not_run"
  fi
  if [[ ${#left_out[@]} -gt 0 ]]; then
    echo '== left out for want of time, or of what comes before'
    printf '%s\n' "${left_out[@]}"
  fi
  if [[ ${#later[@]} -gt 0 ]]; then
    echo '== red once, green alone: faults of ours, to be mended before the next feature'
    printf '%s\n' "${later[@]}"
  fi
  echo "== the parts, $SECONDS s in all"
  [[ ${#parts[@]} -eq 0 ]] || printf '%s\n' "${parts[@]}"
  if [[ ${#red[@]} -gt 0 ]]; then
    echo '== red'
    printf '%s\n' "${red[@]}"
    exit 1
  fi
}
