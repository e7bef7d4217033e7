// SPDX-License-Identifier: Apache-2.0
// The commands, one function each. They return the exit status and throw Failure.
#pragma once

#include "capi/admin/arguments.h"
#include "capi/admin/output.h"

namespace admin {

int start(const Arguments &arguments, Output &output); // start.cc
int run(const Arguments &arguments);                   // run.cc
int check(const Arguments &arguments, Output &output); // check.cc

// The rest is a few calls of libcache each: commands.cc.
int stop(const Arguments &arguments, Output &output);
int generate_session(const Arguments &arguments, Output &output);
int destroy_sessions(const Arguments &arguments, Output &output);
int destroy_cache(const Arguments &arguments, Output &output);
int list_sessions(const Arguments &arguments, Output &output);
int server_info(const Arguments &arguments, Output &output);
int version(Output &output);

} // namespace admin
