// SPDX-License-Identifier: Apache-2.0
// What goes to stdout: lines of text as they come, or with --json one object at the end, whose keys --help lists.
#pragma once

#include "capi/admin/failure.h"

#include <nlohmann/json.hpp>
#include <string>

namespace admin {

class Output {
  public:
    explicit Output(bool json) : json_(json) {}

    bool json() const { return json_; }
    void line(const std::string &text);
    nlohmann::ordered_json &object() { return object_; }
    void add_failure(const Failure &failure); // key "error"
    void finish();                            // throws Failure if stdout did not take everything

  private:
    bool json_;
    nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
};

} // namespace admin
