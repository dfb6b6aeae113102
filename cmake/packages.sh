# Sourced by the run.sh scripts: they say what they need, and what is missing is installed with apt-get.
# On systems without it, or without the right to install, the missing names are printed and the exit status is 2.

missing=()

need_command() {  # PACKAGE COMMAND
  command -v "$2" >/dev/null 2>&1 || missing+=("$1")
}

need_header() {  # PACKAGE HEADER... (any of them will do)
  local package=$1 header place places
  shift
  IFS=: read -r -a places <<<"/usr:/usr/local:${CMAKE_PREFIX_PATH:-}"
  for place in "${places[@]}"; do
    for header in "$@"; do
      if [ -n "$place" ] && [ -e "$place/include/$header" ]; then return 0; fi
    done
  done
  missing+=("$package")
}

need_library() {  # PACKAGE NAME
  echo 'int main() {}' | c++ -x c++ - "-l$2" -o /dev/null >/dev/null 2>&1 || missing+=("$1")
}

need_sanitizers() {  # of clang++, which compiles code with sanitizers in half the time of g++
  echo 'int main() {}' | clang++ -x c++ - -fsanitize=address,undefined -o /dev/null >/dev/null 2>&1 ||
    missing+=(libclang-rt-dev)
}

need_mpi() {
  need_command libopenmpi-dev mpicxx
  need_command openmpi-bin mpirun
}

need_base() {
  need_command g++ c++
  need_command cmake cmake
  need_command ninja-build ninja
  need_command ccache ccache
  need_header libeigen3-dev eigen3/Eigen/Core
}

apt_install() {  # PACKAGE...
  local as_root=(env DEBIAN_FRONTEND=noninteractive) log
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || return 1
    # Without a terminal nobody can type a password: fail at once instead of waiting for one.
    if [ -t 0 ]; then as_root=(sudo "${as_root[@]}"); else as_root=(sudo -n "${as_root[@]}"); fi
  fi
  command -v apt-get >/dev/null 2>&1 || return 1
  echo "evenkeel: installing $*"
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get -q update && "${as_root[@]}" apt-get -q install -y --no-install-recommends "$@"; } \
    </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

install_missing() {
  if [ ${#missing[@]} -gt 0 ] && ! apt_install "${missing[@]}"; then
    echo "evenkeel: please install (names of Debian packages): ${missing[*]}" >&2
    exit 2
  fi
  missing=()
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" != 3.25 ]; then
    echo "evenkeel: CMake 3.25 or newer is needed, $version is installed" >&2
    exit 2
  fi
}

# The text of the language models. Without it another one is read, and the test that needs it is skipped.
want_bible() {
  command -v bible >/dev/null 2>&1 || apt_install bible-kjv ||
    echo "evenkeel: the text of Debian's package bible-kjv cannot be had here" >&2
}

# The images of train_image_classifier. Without them it says what is missing, and its tests that read them are skipped.
want_fashion_mnist() {
  [ -d /usr/share/datasets/fashion-mnist ] || apt_install dataset-fashion-mnist ||
    echo "evenkeel: the images of Debian's package dataset-fashion-mnist cannot be had here" >&2
}
