// SPDX-License-Identifier: Apache-2.0
// The two reports, --list_sessions and --server_info. Their text is an interface: scripts cut it into columns.
#pragma once

#include "capi/admin/connection.h"
#include "capi/admin/output.h"

namespace admin {

void report_sessions(const Listing &listing, Output &output);
void report_server(const cache_server_stats &server, const std::vector<Session> &sessions, Output &output);

} // namespace admin
