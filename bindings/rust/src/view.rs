// SPDX-License-Identifier: Apache-2.0
//! Rows that were found ([`View`], [`Batch`]) and a row that is being written in place ([`Reservation`]). All borrow
//! their cache, so that it cannot be closed under them.
use crate::cache::Cache;
use crate::column::{Column, Element, NO_COLUMN};
use crate::error::{check, Error, Result};
use crate::sys;
use std::marker::PhantomData;
use std::mem::{self, align_of, size_of};
use std::ptr::{self, NonNull};
use std::slice;

/// A row that was found: pointers into shared memory, no copy. Rows never change.
#[repr(transparent)]
pub struct View<'c> {
    raw: sys::cache_view,
    cache: PhantomData<&'c Cache>,
}

// SAFETY: "a view belongs to whoever holds it", and it is only read through &View.
unsafe impl Send for View<'_> {}
unsafe impl Sync for View<'_> {}

impl<'c> View<'c> {
    pub(crate) fn from_raw(raw: sys::cache_view) -> View<'c> {
        View { raw, cache: PhantomData }
    }

    pub(crate) fn missing() -> View<'c> {
        View::from_raw(sys::cache_view { cache: ptr::null(), row_id: 0, reserved: [0; 6] })
    }

    pub fn row_id(&self) -> i64 {
        self.raw.row_id
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        // SAFETY: a view that a call has filled.
        unsafe { sys::cache_view_columns(&self.raw) }.max(0) as usize
    }

    /// Column `i`, which lives as long as this view.
    pub fn column(&self, i: usize) -> Result<Column<'_>> {
        let mut column = NO_COLUMN;
        let i = crate::column::clamp(i);
        // SAFETY: as above; what is found belongs to the view, which is borrowed.
        unsafe {
            check(sys::cache_view_column(&self.raw, i, &mut column))?;
            Column::from_c(&column, PhantomData)
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: a view that a call has filled, or one without a row; released once.
        unsafe { sys::cache_view_release(&mut self.raw) };
    }
}

/// What [`Cache::get_batch`] found, in the order asked for.
pub struct Batch<'c> {
    views: Vec<View<'c>>,
    hits: usize,
}

impl<'c> Batch<'c> {
    pub(crate) fn new(views: Vec<View<'c>>, hits: usize) -> Batch<'c> {
        Batch { views, hits }
    }

    /// How many rows were asked for.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// How many of them are there.
    pub fn hits(&self) -> usize {
        self.hits
    }

    /// The `i`th row asked for, `None` if it is a miss. Panics beyond the end, as a slice does.
    pub fn get(&self, i: usize) -> Option<&View<'c>> {
        Some(&self.views[i]).filter(|view| !view.raw.cache.is_null())
    }

    pub fn iter(&self) -> impl Iterator<Item = Option<&View<'c>>> {
        (0..self.len()).map(move |i| self.get(i))
    }
}

/// Room for one row that is written in place. Nobody sees the row before [`Reservation::commit`]; one that is dropped is
/// aborted. It belongs to the process that made it: a forked child must not touch it.
pub struct Reservation<'c> {
    handle: NonNull<sys::cache_reservation>,
    columns: Vec<sys::cache_column>,
    cache: PhantomData<&'c Cache>,
}

// SAFETY: any thread of the process may end a reservation; its memory is reached through &mut only.
unsafe impl Send for Reservation<'_> {}
unsafe impl Sync for Reservation<'_> {}

impl<'c> Reservation<'c> {
    pub(crate) fn new(handle: NonNull<sys::cache_reservation>, columns: Vec<sys::cache_column>) -> Reservation<'c> {
        Reservation { handle, columns, cache: PhantomData }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The bytes of column `i`, in shared memory. They begin as anything. Panics if there is no such column.
    pub fn bytes_mut(&mut self, i: usize) -> &mut [u8] {
        let column = &self.columns[i];
        if column.bytes == 0 {
            return &mut [];
        }
        // SAFETY: so much writable memory is this reservation's alone, until it ends.
        unsafe { slice::from_raw_parts_mut(column.data.cast(), column.bytes as usize) }
    }

    /// The elements of column `i`. Another type than was reserved is an error.
    pub fn slice_mut<T: Element>(&mut self, i: usize) -> Result<&mut [T]> {
        let reserved = self.columns[i].dtype;
        if reserved != T::DTYPE as u32 {
            return Err(Error::Invalid(format!(
                "column {i} was reserved as type {reserved} of enum cache_dtype and is asked for as {:?}: ask for the \
                 reserved type, or for bytes_mut",
                T::DTYPE
            )));
        }
        let bytes = self.bytes_mut(i);
        if bytes.is_empty() {
            return Ok(&mut []);
        }
        assert_eq!(bytes.as_ptr() as usize % align_of::<T>(), 0, "the library aligns columns to 16 bytes");
        // SAFETY: aligned, and every pattern of bits is an element.
        Ok(unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) })
    }

    /// Publishes the row. True: stored. False: somebody else was faster with this id.
    pub fn commit(self) -> Result<bool> {
        let handle = self.handle;
        let mut ended = mem::ManuallyDrop::new(self);
        // SAFETY: the handle ends here; the destructor, which would end it again, does not run.
        unsafe {
            ptr::drop_in_place(&mut ended.columns);
            Ok(check(sys::cache_commit(handle.as_ptr()))? == 0)
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ended once: commit does not come here.
        unsafe { sys::cache_abort(self.handle.as_ptr()) };
    }
}
