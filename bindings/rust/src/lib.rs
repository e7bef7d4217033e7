// SPDX-License-Identifier: Apache-2.0
//! libcache for Rust: rows of a data set in shared memory, read once from their source and by every process of the
//! machine from there, without a copy and without asking a server.
//!
//! ```no_run
//! use libcache::{Client, Input, OpenOptions};
//!
//! # fn decode(_: i64) -> Vec<u8> { Vec::new() }
//! fn main() -> libcache::Result<()> {
//!     let session = Client::connect()?.open_session("mnist")?; // needs a server: cache_admin --start
//!     let cache = session.open(1, &OpenOptions { expected_rows: 60_000, ..Default::default() })?;
//!     for id in 0..60_000 {
//!         match cache.get(id)? {
//!             Some(row) => println!("{} bytes", row.column(0)?.bytes().len()),
//!             None => {
//!                 let image = decode(id);
//!                 cache.put(id, &[Input::array(&image, &[28, 28]), Input::scalar(&7i64)])?;
//!             }
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! What a call costs, may wait for and returns stands in the manual of the C call behind it: `man cache_put`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod cache;
mod client;
mod column;
mod error;
pub mod sys;
mod view;

pub use cache::{Build, Cache, Put, Stats};
pub use client::{Client, ConnectOptions, Listed, OpenOptions, ServerStats, Session, SessionOptions};
pub use column::{Column, Dtype, Element, Input, Spec};
pub use error::{Error, Result};
pub use view::{Batch, Reservation, View};

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::ptr;
use std::time::Duration;

/// Version of the library in use, which may be newer than this crate: "1.0.0".
pub fn version() -> String {
    // SAFETY: a constant string.
    unsafe { CStr::from_ptr(sys::cache_version()) }.to_string_lossy().into_owned()
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Invalid(format!("{text:?} has a 0 in it, which no name may have")))
}

fn optional_c_string(text: &Option<String>) -> Result<Option<CString>> {
    text.as_deref().map(c_string).transpose()
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A text of fixed length that ends with a 0 at the latest in its last place.
fn text_of(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
