// refused: evenkeel: the calibration's rows lie in the device's memory
#include "evenkeel/taper/taper_norm.hpp"

struct ElsewhereStorage {
  static constexpr bool on_host = false;
  template <class T>
  using Buffer = evenkeel::HostBuffer<T>;
};

double numerator(const evenkeel::TaperRmsNormSaved<float, ElsewhereStorage>& saved) {
  return saved.calibration_numerator();
}
