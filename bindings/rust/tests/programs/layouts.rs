// SPDX-License-Identifier: Apache-2.0
//! Prints size and offsets of each structure of `sys`, one per line, for tests/test_rust.py to compare with libcache.h.
use libcache::sys::*;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

macro_rules! layout {
    ($($structure:ident: $($field:ident),*;)*) => {$(
        let place = MaybeUninit::<$structure>::uninit();
        let base = place.as_ptr();
        println!("{} {}", stringify!($structure), size_of::<$structure>());
        // SAFETY: addresses only, of a place that is there.
        $(println!("{}.{} {}", stringify!($structure), stringify!($field),
                   unsafe { addr_of!((*base).$field) } as usize - base as usize);)*
    )*};
}

fn main() {
    layout! {
        cache_column: data, bytes, shape, dtype, ndim, reserved;
        cache_view: cache, row_id, reserved;
        cache_client_options: size, port, hostname, socket_path, timeout_ms;
        cache_session_options: size, flags, name;
        cache_options: size, flags, memory_limit_bytes, expected_rows, spill, reserved, tag, label;
        cache_stats: size, session_id, cache_id, huge_pages, rows_in_memory, rows_spilled, row_bytes, limit_bytes,
            charged_bytes, granted_bytes, used_bytes, dead_bytes, index_bytes, free_bytes, largest_free_bytes,
            index_levels, layouts, writers, generation, tag, label, readers, populated_bytes, huge_page_bytes,
            spilled_bytes, spill_file_bytes, page_table_bytes, idle_ms, state, kept;
        cache_list_entry: size, session_id, session_name, stats, pids, n_pids, session_flags;
        cache_server_stats: size, port, tcp_port, workers, log_level, supervised, keeper_pid, broker_pid, version_major,
            version_minor, version_patch, huge_pages, generation, memory_limit_bytes, memory_used_bytes, sessions,
            caches, clients, messages, hostname, spill_dir, backing_reason, log_path, socket_path, server_path,
            headroom_bytes, available_bytes, spill_limit_bytes, spill_used_bytes;
    }
}
