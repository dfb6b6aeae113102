#pragma once

// Runs CUDA kernels on a machine that has neither a GPU nor the CUDA toolkit, and finds what is wrong with them.
//
// Every CUDA thread is a fiber. It runs until it must wait at a barrier or a shuffle; who runs next is chosen by
// emulator::options(): forward, reverse, random or skewed orders, seeds, the number of blocks that run at a time, the
// number of host threads. What each build finds:
//
//   any build            divergent barriers and shuffles, masks that name lanes which have left or do not exist, exits
//                        under a barrier, deadlocks (with a list of who waits where), cluster accesses that no barrier
//                        makes safe, too much shared memory: emulator::KernelFault. Launches that CUDA would refuse:
//                        the cudaError_t that it returns. Reads of shared or device memory that nobody wrote: NaN.
//   address,undefined    accesses past any array, shared memory of a block that has ended, misaligned words
//   thread               missing barriers and fences, by CUDA's memory model: shuffles order no memory, atomics order
//                        nothing without __threadfence
//
// Not found: overflow of 32-bit indices, bank conflicts, registers, branches under __CUDA_ARCH__, launch bounds.
//
// Compiled with -fno-strict-aliasing -Wno-unknown-pragmas, linked with Boost.Context; kernels include
// evenkeel/detail/launch.cuh, which includes this (see there).

#include "support/cuda/device.hpp"
#include "support/cuda/half.hpp"
#include "support/cuda/host.hpp"
