#!/bin/sh
# Runs every fuzz target from the committed corpus, FUZZ_SECONDS (60) of one processor in all, on stable Rust,
# without cargo-fuzz; with FUZZ_SECONDS=0 it only builds them. Exits 77, with the reason in the last line, where that
# cannot be done. FUZZ_TARGETS names some targets only; FUZZ_SEED sets the seed; with FUZZ_GROW=1 inputs that reach
# new code are added to the corpus.
set -eu
cd "$(dirname "$0")"

seconds=${FUZZ_SECONDS:-60}
case $seconds in *[!0-9]*)
    echo "FUZZ_SECONDS is '$seconds': give a number of seconds, or 0 to build only"
    exit 1
    ;;
esac
targets=${FUZZ_TARGETS:-$(sed -n '/^\[\[bin\]\]/{n;s/^name = "\(.*\)"/\1/p}' Cargo.toml | tr '\n' ' ')}
# Where to build; libFuzzer's instrumentation must not get into the ordinary build.
out=${FUZZ_TARGET_DIR:-$PWD/target}

cannot() {
    echo "cannot fuzz here: $1"
    exit 77
}

command -v cargo >/dev/null || cannot "there is no cargo"
command -v c++ >/dev/null || cannot "libFuzzer is built from source, and there is no C++ compiler"
host=$(rustc -vV | sed -n 's/^host: //p')
case $host in *-linux-gnu) ;; *) cannot "the instrumentation is set up for Linux with glibc, this is $host" ;; esac

# --target keeps these flags away from build scripts, which have no libFuzzer to link with.
flags="--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4"
flags="$flags -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table"
flags="$flags -C llvm-args=-sanitizer-coverage-trace-compares -C link-arg=-Wl,-z,nostart-stop-gc"
bins=$(for target in $targets; do printf -- '--bin %s ' "$target"; done)
# shellcheck disable=SC2086
RUSTFLAGS=$flags CARGO_TARGET_DIR=$out cargo build --quiet --locked --release --target "$host" $bins ||
    { RUSTFLAGS=$flags CARGO_TARGET_DIR=$out cargo build --quiet --offline --locked --release --target "$host" $bins ||
        { cargo fetch --quiet --locked --target "$host" && exit 1 || cannot "the fuzzing crates could not be fetched"; }; }
[ "$seconds" != 0 ] || exit 0

count=$(echo "$targets" | wc -w)
# Two at a time, where there are two processors.
at_once=$(nproc 2>/dev/null || echo 1)
[ "$at_once" -le 2 ] || at_once=2
each=$((seconds / count))
[ "$each" -ge 1 ] || each=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p artifacts

# Fuzzes one target; leaves its verdict in a file.
fuzz() {
    mkdir -p "corpus/$1" "$scratch/$1"
    # libFuzzer adds what it finds to the first folder.
    if [ "${FUZZ_GROW:-0}" = 1 ]; then folders="corpus/$1"; else folders="$scratch/$1 corpus/$1"; fi
    # libFuzzer takes 0 for a random seed.
    # shellcheck disable=SC2086
    if "$out/$host/release/$1" ${FUZZ_SEED:+-seed=$((FUZZ_SEED + 1))} -max_total_time="$each" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="artifacts/$1-" $folders >"$scratch/$1.log" 2>&1; then
        echo good >"$scratch/$1.verdict"
    fi
}

# Waits for what was started, and says what became of it.
finish() {
    wait
    for target in $started; do
        if [ ! -f "$scratch/$target.verdict" ]; then
            tail -n 40 "$scratch/$target.log"
            echo "fuzz target $target failed; the input is in fuzz/artifacts, replay it with: $out/$host/release/$target <input>"
            exit 1
        fi
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/$target.log")
        if [ "${runs:-0}" -lt 2 ]; then
            echo "fuzz target $target executed ${runs:-no} inputs"
            exit 1
        fi
        echo "$target: $runs executions in $each s"
    done
    started=
}

started=
for target in $targets; do
    fuzz "$target" &
    started="$started $target"
    [ "$(echo "$started" | wc -w)" -lt "$at_once" ] || finish
done
finish
