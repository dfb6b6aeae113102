// Which function checks a case: a table by the case's op, to which each family file adds its own.
#pragma once

#include "cases/case.hpp"

#include <map>
#include <string>

namespace cases_test {

using Check = void (*)(const Case&);
using Table = std::map<std::string, Check>;

void add_layer_norm_cases(Table& table);
void add_rms_norm_cases(Table& table);
void add_row_norm_cases(Table& table);
void add_channel_cases(Table& table);
void add_group_norm_cases(Table& table);
void add_running_cases(Table& table);
void add_weight_cases(Table& table);
void add_pointwise_cases(Table& table);
void add_gradient_cases(Table& table);
void add_qk_norm_cases(Table& table);
void add_determinism_cases(Table& table);
void add_moments_cases(Table& table);
void add_init_cases(Table& table);
void add_residual_cases(Table& table);
void add_fold_cases(Table& table);
void add_taper_cases(Table& table);
void add_synchronized_cases(Table& table);

}  // namespace cases_test
