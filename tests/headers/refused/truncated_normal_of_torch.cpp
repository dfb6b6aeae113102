// refused: truncated normal numbers come from a RandomStream or a CudaRandom, there are none of a TorchRandom

#include "evenkeel/init/truncated_normal.hpp"

#include <vector>

void call(std::vector<float>& weight, evenkeel::TorchRandom& random) { evenkeel::truncated_normal(weight, random); }
