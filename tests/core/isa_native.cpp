#include "core/isa_unit.hpp"

EVENKEEL_ISA_UNIT(native)
