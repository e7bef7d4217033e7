// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/numbers.h"

#include "capi/admin/failure.h"

#include <charconv>

namespace admin {
namespace {

template <class Number> std::optional<Number> parse(const std::string &text) {
    Number number{};
    const char *end = text.data() + text.size();
    auto [stopped, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stopped != end) return std::nullopt;
    return number;
}

} // namespace

std::optional<int64_t> whole_number(const std::string &text) {
    return parse<int64_t>(text);
}

std::optional<double> real_number(const std::string &text) {
    return parse<double>(text);
}

int64_t number_within(const std::string &what, const std::string &text, int64_t lowest, int64_t highest) {
    const auto number = whole_number(text);
    if (number && *number >= lowest && *number <= highest) return *number;
    throw ArgumentError(what + ": '" + text + "' is not a whole number in " + std::to_string(lowest) + ".." +
                        std::to_string(highest) + ".");
}

} // namespace admin
