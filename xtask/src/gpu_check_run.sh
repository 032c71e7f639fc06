#!/bin/sh
# Measures the GPU executor of siltstone on this machine: see README.md.
set -u

if [ $# -lt 1 ]; then
    echo "usage: run OUT [SECONDS [SANITIZER_SECONDS]]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
out=$1
seconds=${2:-570}
sanitizer_seconds=${3:-100}
case $sanitizer_seconds in
'' | *[!0-9]*)
    echo "run: SANITIZER_SECONDS is \`$sanitizer_seconds\`, and has to be a whole number" >&2
    exit 2
    ;;
esac
mkdir -p "$out" || exit 2
# Results of an earlier run are kept, but are not taken for those of this one.
for file in gpu-check.json gpu-check.html; do
    if [ -f "$out/$file" ]; then
        mv "$out/$file" "$out/earlier-$file" || exit 2
    fi
done

# A pipe has the exit code of its last command, so the program's goes through a file.
{
    "$here/gpu-check" "$out" --seconds "$seconds"
    echo $? >"$out/exit-code"
} 2>&1 | tee "$out/gpu-check.log"
code=$(cat "$out/exit-code")

sanitizer=
for found in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    if [ -z "$sanitizer" ] && [ -n "$found" ] && [ -x "$found" ]; then
        sanitizer=$found
    fi
done
# Without a GPU there are no results.
if [ "$sanitizer_seconds" -eq 0 ] || [ ! -f "$out/gpu-check.json" ]; then
    exit "$code"
fi
if [ -z "$sanitizer" ]; then
    echo "compute-sanitizer is not installed, so no access to memory was checked"
    exit "$code"
fi

# Small jobs: a sanitizer makes each launch many times slower.
for tool in memcheck initcheck racecheck; do
    log=$out/$tool.log
    echo "compute-sanitizer --tool $tool: $sanitizer_seconds s at most"
    timeout "$sanitizer_seconds" "$sanitizer" --tool "$tool" --error-exitcode 9 \
        "$here/gpu-check" "$out/$tool" --small --only equality \
        --seconds $((sanitizer_seconds * 3 / 4)) >"$log" 2>&1
    found=$?
    tail -n 3 "$log"
    case $found in
    0) ;;
    9)
        echo "*** $tool found errors: see $log ***"
        code=1
        ;;
    124) echo "$tool was cut off after $sanitizer_seconds s" ;;
    # Some machines do not let it run.
    *) echo "$tool or the program ended with exit code $found: see $log" ;;
    esac
done
exit "$code"
