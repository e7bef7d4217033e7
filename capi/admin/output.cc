// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/output.h"

#include "capi/libcache.h"

#include <iostream>

namespace admin {
namespace {

const char *code_name(int code) {
    switch (code) {
    case CACHE_EINVAL: return "CACHE_EINVAL";
    case CACHE_ENOTFOUND: return "CACHE_ENOTFOUND";
    case CACHE_EFULL: return "CACHE_EFULL";
    case CACHE_EGONE: return "CACHE_EGONE";
    case CACHE_ESERVER: return "CACHE_ESERVER";
    case CACHE_EVERSION: return "CACHE_EVERSION";
    case CACHE_ECONFLICT: return "CACHE_ECONFLICT";
    case CACHE_EBUILDING: return "CACHE_EBUILDING";
    case CACHE_ECORRUPT: return "CACHE_ECORRUPT";
    case CACHE_EIO: return "CACHE_EIO";
    case CACHE_ENOSESSION: return "CACHE_ENOSESSION";
    case CACHE_ENOMEM: return "CACHE_ENOMEM";
    case CACHE_EPERM: return "CACHE_EPERM";
    case CACHE_ETIMEOUT: return "CACHE_ETIMEOUT";
    case CACHE_ENOTSUP: return "CACHE_ENOTSUP";
    case CACHE_ELIMIT: return "CACHE_ELIMIT";
    default: return "";
    }
}

} // namespace

void Output::line(const std::string &text) {
    if (!json_) std::cout << text << '\n';
}

void Output::add_failure(const Failure &failure) {
    object_["error"] = {{"code", failure.code}, {"name", code_name(failure.code)}, {"message", failure.what()}};
}

void Output::finish() {
    // Labels are any bytes that a client sent: what is not UTF-8 is replaced, not refused.
    if (json_) std::cout << object_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    if (!std::cout.flush()) throw Failure("The output could not be written to stdout.");
}

} // namespace admin
