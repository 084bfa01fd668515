#!/bin/sh
# demo.sh BUILD_DIR DATA_FILE OUT_DIR: trains the small model on a text and shows what came of it.
# Writes OUT_DIR/run/ (checkpoint, metrics), OUT_DIR/loss.svg and OUT_DIR/summary.json.
set -eu

die() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

[ $# = 3 ] || die "usage: demo.sh BUILD_DIR DATA_FILE OUT_DIR"
tigon=$1/tigon
data=$2
out=$3
run=$out/run
[ -x "$tigon" ] || die "$tigon is missing: build it first"
command -v gnuplot >/dev/null || die "gnuplot is missing (Debian and Ubuntu: gnuplot-nox)"
mkdir -p "$out"
rm -rf "$run"

"$tigon" train --data "$data" --preset small --time-limit 100 --out "$run"
cp "$run/summary.json" "$out/summary.json"

# Running mean of the loss against million tokens.
sed 's/.*"loss":\([^,]*\),.*"tokens":\([^,]*\),.*/\2 \1/' "$run/metrics.jsonl" |
    awk '{ mean = NR == 1 ? $2 : 0.95 * mean + 0.05 * $2; printf "%.6f %.4f\n", $1 / 1e6, mean }' >"$out/loss.txt"

nats() { sed -n "s/.*\"$1_nats\":[[:space:]]*\([0-9.]*\).*/\1/p" "$out/summary.json"; }
curve="set xlabel 'million bytes read'; set ylabel 'nats a byte'; set yrange [1:3.2]; set key top right; last = $(tail -n 1 "$out/loss.txt" | cut -d ' ' -f 1); plot '$out/loss.txt' with lines title 'training', \
     $(nats bigram) title 'bigram' with lines, $(nats trigram) title 'trigram' with lines, \
     $(nats fourgram) title 'fourgram' with lines, \
     '+' using (last):($(nats validation)) every ::0::0 title 'validation' with points"
gnuplot -e "set terminal svg size 800,480 background 'white' name 'loss'; set output '$out/loss.svg'; set grid; $curve" ||
    die "gnuplot could not draw $out/loss.svg"
printf '\n'
gnuplot -e "set terminal dumb size 79,22; $curve" || die "gnuplot could not draw the curve"

printf '\nThe model goes on from "And it came to pass":\n\n'
"$tigon" sample --checkpoint "$run" --prompt "And it came to pass" --tokens 400 --temperature 0.7
printf '\n\nwritten: %s, %s, %s\ntry next:\n' "$out/loss.svg" "$out/summary.json" "$run/metrics.jsonl"
printf '  %s sample --checkpoint %s --prompt "In the beginning" --seed 2\n' "$tigon" "$run"
printf '  %s train --data %s --out %s --resume --steps 6000\n' "$tigon" "$data" "$run"
printf '  %s train --data DIR --out my-run      # any files of yours\n' "$tigon"
printf '  %s bench                              # how fast each part is here\n' "$tigon"
