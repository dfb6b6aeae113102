# gnuplot mup.gnuplot, in this folder: draws mup.svg from mup_2026-11-30.csv.
set datafile separator ","
set terminal svg size 900,360 font "sans,12"
set output "mup.svg"
set multiplot layout 1,2
set logscale x 2
set xlabel "learning rate"
set yrange [1.9:3]
set grid
do for [init in "mup standard"] {
  set title init
  plot for [w in "32 64 128 256"] "mup_2026-11-30.csv" using 3:(strcol(1) eq init && strcol(2) eq w ? $5 : NaN) with linespoints pointtype 7 pointsize 0.5 title "width ".w
}
unset multiplot
