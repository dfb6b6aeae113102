// This library as a unit for any x86-64 processor has it, whose kernels are chosen at run time: compiled without -march.
#define EVENKEEL_PEER_NAME "portable"
#include "evenkeel.cpp"
