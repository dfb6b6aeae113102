# gnuplot mup.gnuplot, in this folder: draws mup.svg from mup_2026-12-01.csv.
set datafile separator ","
set terminal svg size 900,360 font "sans,12"
set output "mup.svg"
set multiplot layout 1,2
set logscale x 2
set xlabel "learning rate"
set xtics (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
set xrange [0.0002:0.04]
set ylabel "nats per byte"
set yrange [1.9:3]
set grid
titles = "'muP, base of width 256' 'standard'"
names = "mup standard"
do for [i=1:2] {
  set title word(titles, i)
  plot for [w in "32 64 128 256"] "mup_2026-12-01.csv" using 3:(strcol(1) eq word(names, i) && strcol(2) eq w ? $5 : NaN) with linespoints pointtype 7 pointsize 0.5 title "width ".w
}
unset multiplot
