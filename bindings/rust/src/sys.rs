// SPDX-License-Identifier: Apache-2.0
//! libcache.h, call by call and structure by structure: what each one means stands there. tests/test_rust.py compares
//! the structures with the header's.
#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_int, c_void};

pub const CACHE_ENOTFOUND: c_int = -1002;

pub const CACHE_SESSION_KEEP: u32 = 1;
pub const CACHE_CHECK_ROWS: u32 = 1;

pub const CACHE_READ_ONLY: u32 = 1;
pub const CACHE_NO_CREATE: u32 = 2;
pub const CACHE_BUILD: u32 = 4;

pub enum cache_client {}
pub enum cache {}
pub enum cache_reservation {}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct cache_column {
    pub data: *mut c_void,
    pub bytes: u64,
    pub shape: *const i64,
    pub dtype: u32,
    pub ndim: u32,
    pub reserved: [u64; 4],
}

#[repr(C)]
pub struct cache_view {
    pub cache: *const cache,
    pub row_id: i64,
    pub reserved: [u64; 6],
}

#[repr(C)]
pub struct cache_client_options {
    pub size: u32,
    pub port: u32,
    pub hostname: *const c_char,
    pub socket_path: *const c_char,
    pub timeout_ms: i64,
}

#[repr(C)]
pub struct cache_session_options {
    pub size: u32,
    pub flags: u32,
    pub name: *const c_char,
}

#[repr(C)]
pub struct cache_options {
    pub size: u32,
    pub flags: u32,
    pub memory_limit_bytes: u64,
    pub expected_rows: u64,
    pub spill: u32,
    pub reserved: u32,
    pub tag: *const c_char,
    pub label: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct cache_stats {
    pub size: u32,
    pub session_id: u32,
    pub cache_id: u32,
    pub huge_pages: u32,
    pub rows_in_memory: i64,
    pub rows_spilled: i64,
    pub row_bytes: i64,
    pub limit_bytes: i64,
    pub charged_bytes: i64,
    pub granted_bytes: i64,
    pub used_bytes: i64,
    pub dead_bytes: i64,
    pub index_bytes: i64,
    pub free_bytes: i64,
    pub largest_free_bytes: i64,
    pub index_levels: i64,
    pub layouts: i64,
    pub writers: i64,
    pub generation: i64,
    pub tag: [c_char; 72],
    pub label: [c_char; 256],
    pub readers: i64,
    pub populated_bytes: i64,
    pub huge_page_bytes: i64,
    pub spilled_bytes: i64,
    pub spill_file_bytes: i64,
    pub page_table_bytes: i64,
    pub idle_ms: i64,
    pub state: u32,
    pub kept: u32,
}

#[repr(C)]
pub struct cache_list_entry {
    pub size: u32,
    pub session_id: u32,
    pub session_name: *const c_char,
    pub stats: *const cache_stats,
    pub pids: *const i32,
    pub n_pids: u32,
    pub session_flags: u32,
}
pub type cache_list_callback = extern "C" fn(*const cache_list_entry, *mut c_void) -> c_int;

pub type cache_check_callback = extern "C" fn(*const c_char, *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct cache_server_stats {
    pub size: u32,
    pub port: u32,
    pub tcp_port: u32,
    pub workers: u32,
    pub log_level: u32,
    pub supervised: u32,
    pub keeper_pid: i32,
    pub broker_pid: i32,
    pub version_major: u32,
    pub version_minor: u32,
    pub version_patch: u32,
    pub huge_pages: u32,
    pub generation: i64,
    pub memory_limit_bytes: i64,
    pub memory_used_bytes: i64,
    pub sessions: i64,
    pub caches: i64,
    pub clients: i64,
    pub messages: i64,
    pub hostname: [c_char; 64],
    pub spill_dir: [c_char; 512],
    pub backing_reason: [c_char; 256],
    pub log_path: [c_char; 512],
    pub socket_path: [c_char; 128],
    pub server_path: [c_char; 512],
    pub headroom_bytes: i64,
    pub available_bytes: i64,
    pub spill_limit_bytes: i64,
    pub spill_used_bytes: i64,
}

extern "C" {
    pub fn cache_connect(options: *const cache_client_options, client: *mut *mut cache_client) -> c_int;
    pub fn cache_disconnect(client: *mut cache_client) -> c_int;
    pub fn cache_session_create(client: *mut cache_client, session_id: *mut u32) -> c_int;
    pub fn cache_session_create_with(
        client: *mut cache_client,
        options: *const cache_session_options,
        session_id: *mut u32,
    ) -> c_int;
    pub fn cache_session_open(client: *mut cache_client, name: *const c_char, session_id: *mut u32) -> c_int;
    pub fn cache_session_destroy(client: *mut cache_client, session_id: u32) -> c_int;
    pub fn cache_list(client: *mut cache_client, callback: cache_list_callback, argument: *mut c_void) -> c_int;
    pub fn cache_server_info(client: *mut cache_client, stats: *mut cache_server_stats) -> c_int;
    pub fn cache_server_stop(client: *mut cache_client) -> c_int;

    pub fn cache_open(
        client: *mut cache_client,
        session_id: u32,
        cache_id: u32,
        options: *const cache_options,
        handle: *mut *mut cache,
    ) -> c_int;
    pub fn cache_close(handle: *mut cache) -> c_int;
    pub fn cache_destroy(client: *mut cache_client, session_id: u32, cache_id: u32) -> c_int;
    pub fn cache_stat(handle: *mut cache, stats: *mut cache_stats) -> c_int;
    pub fn cache_check(handle: *mut cache, flags: u32, report: cache_check_callback, argument: *mut c_void) -> i64;

    pub fn cache_put(handle: *mut cache, row_id: i64, columns: *const cache_column, n_columns: u32) -> c_int;
    pub fn cache_reserve(
        handle: *mut cache,
        row_id: i64,
        columns: *mut cache_column,
        n_columns: u32,
        reservation: *mut *mut cache_reservation,
    ) -> c_int;
    pub fn cache_commit(reservation: *mut cache_reservation) -> c_int;
    pub fn cache_abort(reservation: *mut cache_reservation) -> c_int;
    pub fn cache_flush(handle: *mut cache) -> c_int;

    pub fn cache_get(handle: *mut cache, row_id: i64, view: *mut cache_view) -> c_int;
    pub fn cache_get_batch(handle: *mut cache, row_ids: *const i64, n: usize, views: *mut cache_view) -> i64;
    pub fn cache_gather(
        handle: *mut cache,
        row_ids: *const i64,
        n: usize,
        column: u32,
        dst: *mut c_void,
        stride: usize,
        found: *mut u8,
    ) -> i64;
    pub fn cache_contains(handle: *mut cache, row_ids: *const i64, n: usize, found: *mut u8) -> i64;
    pub fn cache_scan(handle: *mut cache, cursor: *mut u64, ids: *mut i64, n: usize) -> i64;
    pub fn cache_view_release(view: *mut cache_view) -> c_int;
    pub fn cache_view_columns(view: *const cache_view) -> c_int;
    pub fn cache_view_column(view: *const cache_view, i: u32, column: *mut cache_column) -> c_int;

    pub fn cache_schema_set(handle: *mut cache, names: *const *const c_char, n_names: u32) -> c_int;
    pub fn cache_schema_get(handle: *mut cache, buffer: *mut c_char, bytes: *mut usize) -> c_int;

    pub fn cache_build_begin(handle: *mut cache, resume_at: *mut i64) -> c_int;
    pub fn cache_append(handle: *mut cache, columns: *const cache_column, n_columns: u32, row_id: *mut i64) -> c_int;
    pub fn cache_build_done(handle: *mut cache) -> c_int;
    pub fn cache_build_leave(handle: *mut cache) -> c_int;
    pub fn cache_build_wait(handle: *mut cache, timeout_ms: i64) -> c_int;

    pub fn cache_strerror(code: c_int) -> *const c_char;
    pub fn cache_last_error() -> *const c_char;
    pub fn cache_full_cause() -> u32;
    pub fn cache_version() -> *const c_char;
    pub fn cache_dtype_bytes(dtype: u32) -> usize;
}
