# gnuplot taper_study.gnuplot, in this folder: draws taper_study.svg from taper_study_loss.csv (width 64, seed 1).
set datafile separator ","
set terminal svg size 1200,380 font "sans,13"
set output "taper_study.svg"
set multiplot layout 1,3
set xlabel "step"
set grid
names = "baseline internal_anchor all_anchor all"
titles = "'with norms' 'internal norms tapered' 'all tapered' 'all tapered, no anchor'"
set key top right
set title "training loss, nats per byte"
set yrange [1.5:4]
plot for [i=1:4] "taper_study_loss.csv" using 4:(strcol(1) eq word(names, i) && column(2) == 64 && column(3) == 1 ? $5 : NaN) with points pointtype 7 pointsize 0.4 title word(titles, i)
set title "root mean square of the logits"
set key top left
set autoscale y
plot for [i=1:4] "taper_study_loss.csv" using 4:(strcol(1) eq word(names, i) && column(2) == 64 && column(3) == 1 ? $7 : NaN) with points pointtype 7 pointsize 0.4 title word(titles, i)
set title "gradient norm"
set key top right
set logscale y
plot for [i=1:4] "taper_study_loss.csv" using 4:(strcol(1) eq word(names, i) && column(2) == 64 && column(3) == 1 ? $8 : NaN) with points pointtype 7 pointsize 0.4 title word(titles, i)
unset multiplot
