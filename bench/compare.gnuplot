# gnuplot -e "name='compare'" compare.gnuplot: draws compare.svg from compare.csv: how many times the limit each library
# takes, float, lower is better.
set datafile separator ","
set terminal svg size 1400,900 font "sans,12" background rgb "white"
set output name.".svg"
set multiplot layout 2,1
set logscale y
set grid y
set xtics rotate by 60 right font ",9"
set ylabel "times the limit of memory"
set key top left horizontal
set yrange [0.7:300]
libraries = "evenkeel Eigen PyTorch oneDNN"
short(norm) = norm eq "layer_norm" ? "LN" : norm eq "rms_norm" ? "RMS" : norm eq "batch_norm" ? "BN" : \
  norm eq "batch_norm_inference" ? "BN inf." : norm eq "group_norm" ? "GN" : "WN"
do for [pass in "forward backward"] {
  set title pass.", float, one thread"
  rows(library) = sprintf("< awk -F, -v OFS=, '$2 == \"%s\" && $3 == \"float32\" { k = $1 FS $4 FS $5 FS $6; if (!(k in n)) n[k] = ++m; if ($7 == \"%s\") print n[k], $1, $4, $5, $6, $9 }' %s.csv", pass, library, name)
  plot for [i=1:words(libraries)] rows(word(libraries, i)) \
    using 1:6:xtic(sprintf("%s %sx%s%s", short(strcol(2)), strcol(3), strcol(4), strcol(5) eq "1" ? "" : "x".strcol(5))) \
    with linespoints pointtype 7 pointsize 0.6 linewidth (i == 1 ? 2.5 : 1) title word(libraries, i)
}
unset multiplot
