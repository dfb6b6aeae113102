// Compiled for the oldest processor of the architecture: see tests/CMakeLists.txt.
#include "core/isa_unit.hpp"

EVENKEEL_ISA_UNIT(baseline)
