// SPDX-License-Identifier: Apache-2.0
//! A handle on one cache.
use crate::column::{with_columns, Element, Input, Spec};
use crate::error::{check, Error, Result};
use crate::sys;
use crate::view::{Batch, Reservation, View};
use std::ffi::{CStr, CString};
use std::mem::{self, MaybeUninit};
use std::os::raw::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// What a cache holds; see `struct cache_stats` in libcache.h.
pub use sys::cache_stats as Stats;

impl Stats {
    /// The fingerprint of what makes the rows, as the first opener gave it.
    pub fn tag(&self) -> String {
        crate::text_of(&self.tag)
    }

    /// The words for people.
    pub fn label(&self) -> String {
        crate::text_of(&self.label)
    }
}

/// Whether a put stored its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Stored,
    /// The first one wins: the old row stays.
    WasThere,
}

/// Where a build stands when it is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// This process is the builder. So many rows are there: skip so many in the source.
    Append { next_id: i64 },
    /// The source has ended, with so many rows.
    Done { rows: i64 },
}

/// A handle on one cache, from [`Session::open`](crate::Session::open). Threads share it by reference; reads never wait.
/// Dropping it closes it; the rows stay.
///
/// What was got from a cache borrows it, so it cannot be closed meanwhile:
///
/// ```compile_fail,E0505
/// fn close_too_early(cache: libcache::Cache) {
///     let view = cache.get(1).unwrap().unwrap();
///     drop(cache);
///     println!("{}", view.row_id());
/// }
/// ```
///
/// and a column cannot outlive its view:
///
/// ```compile_fail,E0515
/// fn first_column(cache: &libcache::Cache) -> &[u8] {
///     let view = cache.get(1).unwrap().unwrap();
///     view.column(0).unwrap().bytes()
/// }
/// ```
///
/// and a row that is being written cannot be used after its commit:
///
/// ```compile_fail,E0505
/// fn write_on(mut room: libcache::Reservation<'_>) {
///     let bytes = room.bytes_mut(0);
///     room.commit().unwrap();
///     bytes[0] = 1;
/// }
/// ```
pub struct Cache {
    handle: NonNull<sys::cache>,
    differs: Option<String>,
}

// SAFETY: "every handle may be used by several threads at once"; closing needs the value itself.
unsafe impl Send for Cache {}
unsafe impl Sync for Cache {}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: closed once, and nothing borrows it any more.
        unsafe { sys::cache_close(self.handle.as_ptr()) };
    }
}

impl Cache {
    pub(crate) fn new(handle: NonNull<sys::cache>, differs: Option<String>) -> Cache {
        Cache { handle, differs }
    }

    #[inline]
    fn raw(&self) -> *mut sys::cache {
        self.handle.as_ptr()
    }

    /// How the cache differs from what was asked for when it was opened.
    pub fn differs(&self) -> Option<&str> {
        self.differs.as_deref()
    }

    // ---- writing ----

    /// Stores a row.
    pub fn put(&self, row_id: i64, row: &[Input<'_>]) -> Result<Put> {
        // SAFETY: the inputs are borrowed for the call.
        let code = with_columns(row, |columns, n| unsafe { sys::cache_put(self.raw(), row_id, columns, n) });
        Ok(if check(code)? == 0 { Put::Stored } else { Put::WasThere })
    }

    /// Room for a row that is written in place, e.g. by a decoder. `None`: the row is there.
    pub fn reserve(&self, row_id: i64, row: &[Spec<'_>]) -> Result<Option<Reservation<'_>>> {
        let mut columns = row.iter().map(|spec| spec.to_c()).collect::<Result<Vec<_>>>()?;
        let mut made = ptr::null_mut();
        let n = crate::column::clamp(columns.len());
        // SAFETY: the shapes are borrowed for the call.
        check(unsafe { sys::cache_reserve(self.raw(), row_id, columns.as_mut_ptr(), n, &mut made) })?;
        Ok(NonNull::new(made).map(|handle| Reservation::new(handle, columns)))
    }

    /// Waits until every row put by this process is as safe as it gets; rows in memory are when put returns.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_flush(self.raw()) }).map(drop)
    }

    // ---- reading ----

    /// Finds a row. `None`: a miss, read the source. Never waits.
    #[inline]
    pub fn get(&self, row_id: i64) -> Result<Option<View<'_>>> {
        let mut view = MaybeUninit::uninit();
        // SAFETY: the view is filled exactly if the result is 0.
        unsafe {
            match sys::cache_get(self.raw(), row_id, view.as_mut_ptr()) {
                0 => Ok(Some(View::from_raw(view.assume_init()))),
                sys::CACHE_ENOTFOUND => Ok(None),
                code => Err(Error::last(code.into())),
            }
        }
    }

    /// Finds many rows, fetching their memory ahead: faster than as many gets.
    pub fn get_batch(&self, row_ids: &[i64]) -> Result<Batch<'_>> {
        let mut views: Vec<View<'_>> = row_ids.iter().map(|_| View::missing()).collect();
        // SAFETY: View is a transparent cache_view, and each one has no row yet.
        let hits = check(unsafe {
            sys::cache_get_batch(self.raw(), row_ids.as_ptr(), row_ids.len(), views.as_mut_ptr().cast())
        })?;
        Ok(Batch::new(views, hits as usize))
    }

    /// Copies column `column` of each row into its share of `to`, whose length is a multiple of the number of rows: row
    /// i begins at element i * (to.len() / row_ids.len()). `found[i]` tells whether it is there. Returns how many were
    /// copied.
    pub fn gather<T: Element>(&self, row_ids: &[i64], column: u32, to: &mut [T], found: &mut [bool]) -> Result<usize> {
        if found.len() != row_ids.len() {
            let places = found.len();
            return Err(Error::Invalid(format!(
                "gather: found has {places} places for {} rows: give it as many",
                row_ids.len()
            )));
        }
        // SAFETY: the library writes 0 and 1, which are what bool is made of.
        unsafe { self.gather_into(row_ids, column, to, found.as_mut_ptr().cast()) }
    }

    /// The same where every row must be there: a miss is [`Error::NotFound`], after all rows were tried.
    pub fn gather_all<T: Element>(&self, row_ids: &[i64], column: u32, to: &mut [T]) -> Result<()> {
        // SAFETY: found may be null.
        unsafe { self.gather_into(row_ids, column, to, ptr::null_mut()) }.map(drop)
    }

    /// # Safety
    /// `found` is null or has a place for each row.
    unsafe fn gather_into<T: Element>(
        &self,
        row_ids: &[i64],
        column: u32,
        to: &mut [T],
        found: *mut u8,
    ) -> Result<usize> {
        let n = row_ids.len();
        if n > 0 && to.len() % n != 0 {
            return Err(Error::Invalid(format!("gather: {} elements cannot be shared by {n} rows", to.len())));
        }
        let stride = mem::size_of_val(to).checked_div(n).unwrap_or(0); // no rows: none is written
        let code = sys::cache_gather(self.raw(), row_ids.as_ptr(), n, column, to.as_mut_ptr().cast(), stride, found);
        Ok(check(code)? as usize)
    }

    /// Whether a row is there.
    pub fn contains(&self, row_id: i64) -> Result<bool> {
        let mut found = 0;
        // SAFETY: one id, one place.
        check(unsafe { sys::cache_contains(self.raw(), &row_id, 1, &mut found) })?;
        Ok(found != 0)
    }

    /// The ids of all rows, in no particular order. Rows added meanwhile may be among them.
    pub fn ids(&self) -> Result<Vec<i64>> {
        const AT_ONCE: usize = 4096;
        let (mut ids, mut part, mut cursor) = (Vec::new(), vec![0; AT_ONCE], 0);
        loop {
            // SAFETY: `part` has so many places.
            let n = check(unsafe { sys::cache_scan(self.raw(), &mut cursor, part.as_mut_ptr(), part.len()) })?;
            if n == 0 {
                return Ok(ids);
            }
            ids.extend_from_slice(&part[..n as usize]);
        }
    }

    /// What the cache holds, from shared memory, without asking the server.
    pub fn stat(&self) -> Result<Stats> {
        // SAFETY: numbers and arrays of them may be 0.
        let mut stats: Stats = unsafe { mem::zeroed() };
        stats.size = mem::size_of::<Stats>() as u32;
        // SAFETY: the size says how much may be written.
        check(unsafe { sys::cache_stat(self.raw(), &mut stats) })?;
        Ok(stats)
    }

    /// Verifies what must hold in the cache's memory, on a live cache; with `rows` the bytes of each row, too. Returns a
    /// sentence for each fault: none, if all is right.
    pub fn check(&self, rows: bool) -> Result<Vec<String>> {
        extern "C" fn add(fault: *const c_char, faults: *mut c_void) {
            // SAFETY: a string that is valid during this call; `faults` is check()'s vector.
            unsafe { (*faults.cast::<Vec<String>>()).push(CStr::from_ptr(fault).to_string_lossy().into_owned()) }
        }
        let mut faults = Vec::new();
        let to: *mut Vec<String> = &mut faults;
        let flags = if rows { sys::CACHE_CHECK_ROWS } else { 0 };
        // SAFETY: the vector is lent to nobody else meanwhile.
        check(unsafe { sys::cache_check(self.raw(), flags, add, to.cast()) })?;
        Ok(faults)
    }

    // ---- names of columns ----

    /// Names the columns, once per cache; the same ones may be set again.
    pub fn set_names(&self, names: &[&str]) -> Result<()> {
        let kept = names.iter().map(|name| crate::c_string(name)).collect::<Result<Vec<CString>>>()?;
        let pointers: Vec<*const c_char> = kept.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: the strings live until the call has ended.
        check(unsafe { sys::cache_schema_set(self.raw(), pointers.as_ptr(), crate::column::clamp(pointers.len())) })
            .map(drop)
    }

    /// The names of the columns, `None` as long as nobody has set them.
    pub fn names(&self) -> Result<Option<Vec<String>>> {
        let mut buffer = vec![0u8; 4096]; // more is never stored
        let mut bytes = buffer.len();
        // SAFETY: `bytes` says how much room there is.
        let code = unsafe { sys::cache_schema_get(self.raw(), buffer.as_mut_ptr().cast(), &mut bytes) };
        if code == sys::CACHE_ENOTFOUND {
            return Ok(None);
        }
        let n = check(code)? as usize;
        let names = buffer.split(|&byte| byte == 0).take(n);
        Ok(Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()))
    }

    // ---- streams: sources without an index ----

    /// Makes this process the builder; see cache_build_begin(3).
    pub fn build_begin(&self) -> Result<Build> {
        let mut next_id = 0;
        // SAFETY: an open handle.
        let done = check(unsafe { sys::cache_build_begin(self.raw(), &mut next_id) })? == 1;
        Ok(if done { Build::Done { rows: next_id } } else { Build::Append { next_id } })
    }

    /// Stores a row under the next id, and returns it.
    pub fn append(&self, row: &[Input<'_>]) -> Result<i64> {
        let mut id = 0;
        // SAFETY: the inputs are borrowed for the call.
        check(with_columns(row, |columns, n| unsafe { sys::cache_append(self.raw(), columns, n, &mut id) }))?;
        Ok(id)
    }

    /// Says that the source has ended.
    pub fn build_done(&self) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_build_done(self.raw()) }).map(drop)
    }

    /// Stops building before the end: whoever begins next goes on where this process stopped.
    pub fn build_leave(&self) -> Result<()> {
        // SAFETY: an open handle.
        check(unsafe { sys::cache_build_leave(self.raw()) }).map(drop)
    }

    /// Waits until the build is done, for ever without a `timeout`.
    pub fn build_wait(&self, timeout: Option<Duration>) -> Result<()> {
        let ms = timeout.map_or(-1, crate::milliseconds);
        // SAFETY: an open handle.
        check(unsafe { sys::cache_build_wait(self.raw(), ms) }).map(drop)
    }
}
