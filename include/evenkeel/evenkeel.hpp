/// Everything for the CPU. Single headers may be included instead. Who passes Eigen::Tensor to residual blocks includes
/// evenkeel/tensor.hpp too.
#pragma once

#include "evenkeel/init/initializers.hpp"
#include "evenkeel/init/torch_random.hpp"
#include "evenkeel/moments.hpp"
#include "evenkeel/norms/batch_norm.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "evenkeel/residual/post_norm.hpp"
#include "evenkeel/residual/pre_norm.hpp"
#include "evenkeel/residual/rezero.hpp"
