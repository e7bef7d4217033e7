// SPDX-License-Identifier: Apache-2.0
//! The way to a server, and its sessions.
use crate::cache::{Cache, Stats};
use crate::error::{check, last_sentence, Result};
use crate::sys;
use std::ffi::CStr;
use std::mem;
use std::os::raw::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

/// How to find the server, and how long to wait for it.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// 1025..65535; 0: `$LIBCACHE_PORT`, else `$MS_CACHE_PORT`, else 50052.
    pub port: u32,
    /// `None` or "127.0.0.1": a cache never leaves the machine.
    pub hostname: Option<String>,
    /// `None`: made from the port.
    pub socket_path: Option<String>,
    /// Of every call that may wait; `None`: a minute.
    pub timeout: Option<Duration>,
}

/// Which session to make or find.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// The session of this name, made by whoever asks first; `None`: a new one.
    pub name: Option<String>,
    /// Its caches are not dropped to make room, nor for being idle.
    pub keep: bool,
}

/// How to open a cache.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Of the whole cache, index included, at least 1 MiB; 0: what the server may use.
    pub limit_bytes: u64,
    /// Row ids will mostly lie below it. A hint; 0: not known.
    pub expected_rows: u64,
    /// What makes the rows: joining a cache with another tag is [`Error::Conflict`](crate::Error::Conflict).
    pub tag: Option<String>,
    /// For people.
    pub label: Option<String>,
    /// This handle never writes.
    pub read_only: bool,
    /// A cache that does not exist is [`Error::NotFound`](crate::Error::NotFound).
    pub no_create: bool,
    /// Rows are appended in a build phase.
    pub build: bool,
    /// Rows that memory refuses go to disk.
    pub spill: bool,
}

/// One line of [`Client::list`].
pub struct Listed {
    pub session_id: u32,
    pub session_name: String,
    /// `None`: the session has no cache.
    pub stats: Option<Stats>,
    /// Processes that have the cache open.
    pub pids: Vec<i32>,
}

/// Settings and totals of a server; see `struct cache_server_stats` in libcache.h.
pub use sys::cache_server_stats as ServerStats;

struct Handle(NonNull<sys::cache_client>);

// SAFETY: "every handle may be used by several threads at once"; the last owner disconnects.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: given back once.
        unsafe { sys::cache_disconnect(self.0.as_ptr()) };
    }
}

/// A connection to the server of this user and port. Clones share it; sessions keep it, caches do not need it.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// Connects as the environment says.
    pub fn connect() -> Result<Client> {
        Client::connect_with(&ConnectOptions::default())
    }

    pub fn connect_with(wanted: &ConnectOptions) -> Result<Client> {
        let hostname = crate::optional_c_string(&wanted.hostname)?;
        let socket_path = crate::optional_c_string(&wanted.socket_path)?;
        let options = sys::cache_client_options {
            size: mem::size_of::<sys::cache_client_options>() as u32,
            port: wanted.port,
            hostname: crate::pointer(&hostname),
            socket_path: crate::pointer(&socket_path),
            timeout_ms: wanted.timeout.map_or(0, |timeout| crate::milliseconds(timeout).max(1)),
        };
        let mut made = ptr::null_mut();
        // SAFETY: the strings live until the call has ended.
        check(unsafe { sys::cache_connect(&options, &mut made) })?;
        let made = NonNull::new(made).expect("a call that succeeds gives a handle");
        Ok(Client { handle: Arc::new(Handle(made)) })
    }

    fn raw(&self) -> *mut sys::cache_client {
        self.handle.0.as_ptr()
    }

    /// A new session with a random id, which lives until it is destroyed or the server stops.
    pub fn create_session(&self) -> Result<Session> {
        let mut id = 0;
        // SAFETY: an open handle.
        check(unsafe { sys::cache_session_create(self.raw(), &mut id) })?;
        Ok(self.session(id))
    }

    /// The session of this name, made by whoever asks first.
    pub fn open_session(&self, name: &str) -> Result<Session> {
        let name = crate::c_string(name)?;
        let mut id = 0;
        // SAFETY: an open handle.
        check(unsafe { sys::cache_session_open(self.raw(), name.as_ptr(), &mut id) })?;
        Ok(self.session(id))
    }

    pub fn create_session_with(&self, wanted: &SessionOptions) -> Result<Session> {
        let name = crate::optional_c_string(&wanted.name)?;
        let options = sys::cache_session_options {
            size: mem::size_of::<sys::cache_session_options>() as u32,
            flags: if wanted.keep { sys::CACHE_SESSION_KEEP } else { 0 },
            name: crate::pointer(&name),
        };
        let mut id = 0;
        // SAFETY: the name lives until the call has ended.
        check(unsafe { sys::cache_session_create_with(self.raw(), &options, &mut id) })?;
        Ok(self.session(id))
    }

    /// One that somebody else made, e.g. `cache_admin -g`. Whether it exists shows when a cache is opened.
    pub fn session(&self, id: u32) -> Session {
        Session { client: self.clone(), id }
    }

    /// All caches of the server, ascending, and the sessions without one.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut lines: Vec<Listed> = Vec::new();
        let to: *mut Vec<Listed> = &mut lines;
        // SAFETY: add_line gets the argument back while the vector is lent to nobody else.
        check(unsafe { sys::cache_list(self.raw(), add_line, to.cast()) })?;
        Ok(lines)
    }

    pub fn server_info(&self) -> Result<ServerStats> {
        // SAFETY: numbers and arrays of them may be 0.
        let mut stats: ServerStats = unsafe { mem::zeroed() };
        stats.size = mem::size_of::<ServerStats>() as u32;
        // SAFETY: the size says how much may be written.
        check(unsafe { sys::cache_server_info(self.raw(), &mut stats) })?;
        Ok(stats)
    }

    /// Ends the server and returns when it has ended.
    pub fn stop_server(&self) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_server_stop(self.raw()) }).map(drop)
    }
}

extern "C" fn add_line(entry: *const sys::cache_list_entry, lines: *mut c_void) -> c_int {
    // SAFETY: the entry and what it points to are valid during this call; `lines` is list()'s vector.
    unsafe {
        let (entry, lines) = (&*entry, &mut *lines.cast::<Vec<Listed>>());
        let pids = if entry.n_pids == 0 { &[] } else { slice::from_raw_parts(entry.pids, entry.n_pids as usize) };
        lines.push(Listed {
            session_id: entry.session_id,
            session_name: CStr::from_ptr(entry.session_name).to_string_lossy().into_owned(),
            stats: entry.stats.as_ref().copied(),
            pids: pids.to_vec(),
        });
    }
    0
}

/// A set of caches that live and end together: a number. It does not end with this object.
#[derive(Clone)]
pub struct Session {
    client: Client,
    id: u32,
}

impl Session {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Opens a cache, or makes it. Any number of processes may do so at once.
    pub fn open(&self, cache_id: u32, wanted: &OpenOptions) -> Result<Cache> {
        let tag = crate::optional_c_string(&wanted.tag)?;
        let label = crate::optional_c_string(&wanted.label)?;
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let options = sys::cache_options {
            size: mem::size_of::<sys::cache_options>() as u32,
            flags: flag(wanted.read_only, sys::CACHE_READ_ONLY)
                | flag(wanted.no_create, sys::CACHE_NO_CREATE)
                | flag(wanted.build, sys::CACHE_BUILD),
            memory_limit_bytes: wanted.limit_bytes,
            expected_rows: wanted.expected_rows,
            spill: wanted.spill.into(),
            reserved: 0,
            tag: crate::pointer(&tag),
            label: crate::pointer(&label),
        };
        let mut made = ptr::null_mut();
        // SAFETY: the strings live until the call has ended.
        let code = check(unsafe { sys::cache_open(self.client.raw(), self.id, cache_id, &options, &mut made) })?;
        let differs = (code == 1).then(last_sentence);
        Ok(Cache::new(NonNull::new(made).expect("a call that succeeds gives a handle"), differs))
    }

    /// Drops one cache: whoever uses it gets [`Error::Gone`](crate::Error::Gone); views stay readable.
    pub fn destroy_cache(&self, cache_id: u32) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_destroy(self.client.raw(), self.id, cache_id) }).map(drop)
    }

    /// Ends the session and its caches.
    pub fn destroy(&self) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_session_destroy(self.client.raw(), self.id) }).map(drop)
    }
}
