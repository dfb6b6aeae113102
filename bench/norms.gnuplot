# gnuplot -e "name='norms'" norms.gnuplot: draws norms.svg from norms.csv: every norm's speed as a share of a copy of the
# same bytes, 2048 x 1024 floats, -O2, one thread; higher is better.
set datafile separator ","
set terminal svg size 1000,520 font "sans,12" background rgb "white"
set output name.".svg"
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.8 border -1
set grid y
set yrange [0:*]
set ylabel "share of the speed of a copy"
set xtics rotate by 40 right
set title "2048 x 1024 floats, one thread"
norms = "awk -F, '$1 == \"O2\" && $4 == \"2048x1024\" && $3 == \"%s\" { print $2 \",\" $7 }' %s.csv"
plot "< ".sprintf(norms, "forward", name) using 2:xtic(1) title "forward", \
  "< ".sprintf(norms, "backward", name) using 2 title "backward"
