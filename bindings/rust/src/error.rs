// SPDX-License-Identifier: Apache-2.0
//! What can go wrong, one variant per code of libcache.h, each with the library's own sentence.
use crate::sys;
use std::ffi::CStr;
use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// A failure. The text says what was tried, on what, and what to do next; it is also what `Display` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is not allowed; the text names it.
    Invalid(String),
    /// There is no such cache. (A row that is not there is `None`, and so are names that nobody has set.)
    NotFound(String),
    /// The limit of the cache, or what the server may use, is used up: go on without caching.
    Full(String),
    /// The session or the cache was destroyed: open another cache.
    Gone(String),
    /// No server is reachable, or it has ended: start one (`cache_admin --start`) and connect anew.
    Server(String),
    /// The server is of another major version; both are named.
    Version(String),
    /// The cache exists with another tag or other names: use another cache id.
    Conflict(String),
    /// This process is not the builder of the cache, or nobody is.
    Building(String),
    /// What stands in shared memory is damaged: destroy the cache, report the text.
    Corrupt(String),
    /// A system call failed; it is named with its errno.
    Io(String),
    /// No session has this id: make one.
    NoSession(String),
    /// This process has no memory or no address space left.
    NoMemory(String),
    /// The server belongs to another user, or the handle is read-only.
    Permission(String),
    /// No answer before the deadline: the server hangs or the machine is overloaded.
    Timeout(String),
    /// Not supported by this version, server or kernel; the text says which.
    NotSupported(String),
    /// A fixed limit is reached; it is named.
    Limit(String),
    /// A code of a newer library than this crate knows.
    Other(i32, String),
}

impl Error {
    pub(crate) fn new(code: i32, text: String) -> Error {
        match code {
            -1001 => Error::Invalid(text),
            sys::CACHE_ENOTFOUND => Error::NotFound(text),
            -1003 => Error::Full(text),
            -1004 => Error::Gone(text),
            -1005 => Error::Server(text),
            -1006 => Error::Version(text),
            -1007 => Error::Conflict(text),
            -1008 => Error::Building(text),
            -1009 => Error::Corrupt(text),
            -1010 => Error::Io(text),
            -1011 => Error::NoSession(text),
            -1012 => Error::NoMemory(text),
            -1013 => Error::Permission(text),
            -1014 => Error::Timeout(text),
            -1015 => Error::NotSupported(text),
            -1016 => Error::Limit(text),
            _ => Error::Other(code, text),
        }
    }

    /// What this thread's last call, which returned `code`, says about it.
    #[cold]
    pub(crate) fn last(code: i64) -> Error {
        let code = code as i32;
        let text = last_sentence();
        Error::new(code, if text.is_empty() { meaning(code) } else { text })
    }

    /// The sentence.
    pub fn text(&self) -> &str {
        match self {
            Error::Invalid(text)
            | Error::NotFound(text)
            | Error::Full(text)
            | Error::Gone(text)
            | Error::Server(text)
            | Error::Version(text)
            | Error::Conflict(text)
            | Error::Building(text)
            | Error::Corrupt(text)
            | Error::Io(text)
            | Error::NoSession(text)
            | Error::NoMemory(text)
            | Error::Permission(text)
            | Error::Timeout(text)
            | Error::NotSupported(text)
            | Error::Limit(text)
            | Error::Other(_, text) => text,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.text())
    }
}

impl std::error::Error for Error {}

pub(crate) fn last_sentence() -> String {
    // SAFETY: a string that is valid until this thread's next call, and copied before.
    unsafe { CStr::from_ptr(sys::cache_last_error()) }.to_string_lossy().into_owned()
}

fn meaning(code: i32) -> String {
    // SAFETY: a constant string for every number.
    unsafe { CStr::from_ptr(sys::cache_strerror(code)) }.to_string_lossy().into_owned()
}

/// Passes the count or the 0 of a call on.
#[inline]
pub(crate) fn check(code: impl Into<i64>) -> Result<i64> {
    let code = code.into();
    if code < 0 {
        return Err(Error::last(code));
    }
    Ok(code)
}
