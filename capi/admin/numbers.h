// SPDX-License-Identifier: Apache-2.0
// Numbers on the command line and in the environment: decimal digits and nothing else. No blanks, no trailing junk, no
// wrapping: what does not fit is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace admin {

std::optional<int64_t> whole_number(const std::string &text);
std::optional<double> real_number(const std::string &text);

// The number, if it is lowest..highest; else ArgumentError, which names the value and where it came from (`what`).
int64_t number_within(const std::string &what, const std::string &text, int64_t lowest, int64_t highest);

} // namespace admin
