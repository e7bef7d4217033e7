// SPDX-License-Identifier: Apache-2.0
//! Columns: what goes in ([`Input`], [`Spec`]) and what comes out ([`Column`]).
use crate::error::{Error, Result};
use crate::sys;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::os::raw::c_void;
use std::ptr;
use std::slice;

/// Type of a column's elements; the numbers are those of libcache.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Dtype {
    Bool = 1,
    Int8 = 2,
    Int16 = 3,
    Int32 = 4,
    Int64 = 5,
    Uint8 = 6,
    Uint16 = 7,
    Uint32 = 8,
    Uint64 = 9,
    Float16 = 10,
    Bfloat16 = 11,
    Float32 = 12,
    Float64 = 13,
    Bytes = 14,
    String = 15,
}

impl Dtype {
    const ALL: [Dtype; 15] = [
        Dtype::Bool,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Float16,
        Dtype::Bfloat16,
        Dtype::Float32,
        Dtype::Float64,
        Dtype::Bytes,
        Dtype::String,
    ];

    fn from_raw(number: u32) -> Result<Dtype> {
        let place = (number as usize).wrapping_sub(1);
        Dtype::ALL.get(place).copied().ok_or_else(|| {
            Error::NotSupported(format!("a column is of type {number}, which this crate does not know: update it"))
        })
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        // SAFETY: takes any number.
        unsafe { sys::cache_dtype_bytes(self as u32) }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a column's elements may be read and written as: one for which every pattern of bits is a value, so
/// that nothing another process stores can be wrong. `bool`, float16 and bfloat16 go through [`Input::raw`] and
/// [`Column::bytes`].
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($rust:ty: $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements!(i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: Uint8, u16: Uint16, u32: Uint32, u64: Uint64,
          f32: Float32, f64: Float64);

fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and bytes no alignment.
    unsafe { slice::from_raw_parts(elements.as_ptr().cast(), std::mem::size_of_val(elements)) }
}

/// A column to be stored: borrows data and shape.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    data: &'a [u8],
    dtype: Dtype,
    shape: Shape<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Shape<'a> {
    One(i64), // a single dimension needs no slice of the caller's
    Any(&'a [i64]),
}

impl<'a> Input<'a> {
    /// Elements with a shape, outermost dimension first. A put whose shape has another number of elements is refused.
    pub fn array<T: Element>(elements: &'a [T], shape: &'a [i64]) -> Input<'a> {
        Input::raw(T::DTYPE, bytes_of(elements), shape)
    }

    /// Elements in one dimension.
    pub fn vector<T: Element>(elements: &'a [T]) -> Input<'a> {
        Input { data: bytes_of(elements), dtype: T::DTYPE, shape: Shape::One(elements.len() as i64) }
    }

    /// One element without a dimension.
    pub fn scalar<T: Element>(element: &'a T) -> Input<'a> {
        Input::array(slice::from_ref(element), &[])
    }

    /// Bytes that mean something to you only.
    pub fn bytes(data: &'a [u8]) -> Input<'a> {
        Input { data, dtype: Dtype::Bytes, shape: Shape::One(data.len() as i64) }
    }

    /// A text.
    pub fn text(text: &'a str) -> Input<'a> {
        Input { data: text.as_bytes(), dtype: Dtype::String, shape: Shape::One(text.len() as i64) }
    }

    /// Any type, as the bytes in memory.
    pub fn raw(dtype: Dtype, data: &'a [u8], shape: &'a [i64]) -> Input<'a> {
        Input { data, dtype, shape: Shape::Any(shape) }
    }

    /// As the library wants it: points into this object, which must stay where it is meanwhile.
    fn as_c(&self) -> sys::cache_column {
        let (shape, ndim) = match &self.shape {
            Shape::One(extent) => (extent as *const i64, 1),
            Shape::Any(extents) => (extents.as_ptr(), clamp(extents.len())),
        };
        sys::cache_column {
            data: self.data.as_ptr() as *mut c_void, // not written to
            bytes: self.data.len() as u64,
            shape,
            dtype: self.dtype as u32,
            ndim,
            reserved: [0; 4],
        }
    }
}

/// A count as libcache.h has it. What does not fit is beyond every limit, and so is this.
pub(crate) fn clamp(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) const NO_COLUMN: sys::cache_column =
    sys::cache_column { data: ptr::null_mut(), bytes: 0, shape: ptr::null(), dtype: 0, ndim: 0, reserved: [0; 4] };

/// Calls with a row as an array of cache_column. Few columns need no allocation.
#[inline]
pub(crate) fn with_columns<R>(row: &[Input<'_>], call: impl FnOnce(*const sys::cache_column, u32) -> R) -> R {
    const FEW: usize = 8;
    if row.len() <= FEW {
        let mut few = [NO_COLUMN; FEW];
        for (to, input) in few.iter_mut().zip(row) {
            *to = input.as_c();
        }
        return call(few.as_ptr(), row.len() as u32);
    }
    let many: Vec<_> = row.iter().map(Input::as_c).collect();
    call(many.as_ptr(), clamp(many.len()))
}

/// Type and shape of a column that is to be written in place.
#[derive(Debug, Clone, Copy)]
pub struct Spec<'a> {
    dtype: Dtype,
    shape: &'a [i64],
}

impl<'a> Spec<'a> {
    pub fn new(dtype: Dtype, shape: &'a [i64]) -> Spec<'a> {
        Spec { dtype, shape }
    }

    pub fn of<T: Element>(shape: &'a [i64]) -> Spec<'a> {
        Spec::new(T::DTYPE, shape)
    }

    pub(crate) fn to_c(self) -> Result<sys::cache_column> {
        let bytes = self
            .shape
            .iter()
            .try_fold(self.dtype.size() as u64, |product, &extent| product.checked_mul(u64::try_from(extent).ok()?))
            .ok_or_else(|| Error::Invalid(format!("a column cannot have the shape {:?}: mend it", self.shape)))?;
        Ok(sys::cache_column {
            bytes,
            shape: self.shape.as_ptr(),
            dtype: self.dtype as u32,
            ndim: clamp(self.shape.len()),
            ..NO_COLUMN
        })
    }
}

/// A column of a row that was found: lives as long as the view it came from.
#[derive(Debug, Clone, Copy)]
pub struct Column<'v> {
    data: &'v [u8],
    shape: &'v [i64],
    dtype: Dtype,
}

impl<'v> Column<'v> {
    /// # Safety
    /// The pointers are those of a row whose view is borrowed for 'v.
    pub(crate) unsafe fn from_c(column: &sys::cache_column, _view: PhantomData<&'v ()>) -> Result<Column<'v>> {
        let bytes = usize::try_from(column.bytes).expect("a column is mapped, so its length is one of this machine");
        Ok(Column {
            data: slice_or_empty(column.data.cast(), bytes),
            shape: slice_or_empty(column.shape, column.ndim as usize),
            dtype: Dtype::from_raw(column.dtype)?,
        })
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'v [i64] {
        self.shape
    }

    /// All bytes, whatever the type.
    pub fn bytes(&self) -> &'v [u8] {
        self.data
    }

    /// All elements, last dimension first. Another type than was stored is an error.
    pub fn as_slice<T: Element>(&self) -> Result<&'v [T]> {
        self.must_be(T::DTYPE)?;
        if self.data.is_empty() {
            return Ok(&[]);
        }
        if self.data.as_ptr() as usize % align_of::<T>() != 0 || self.data.len() % size_of::<T>() != 0 {
            return Err(Error::Corrupt(format!(
                "{} bytes at {:p} are no array of {:?}: destroy the cache and report this",
                self.data.len(),
                self.data.as_ptr(),
                self.dtype
            )));
        }
        // SAFETY: aligned, whole elements, and every pattern of bits is one.
        Ok(unsafe { slice::from_raw_parts(self.data.as_ptr().cast(), self.data.len() / size_of::<T>()) })
    }

    /// The only element.
    pub fn scalar<T: Element>(&self) -> Result<T> {
        match self.as_slice()? {
            [element] => Ok(*element),
            elements => Err(Error::Invalid(format!("the column has {} elements, not 1: use as_slice", elements.len()))),
        }
    }

    /// The text of a [`Dtype::String`].
    pub fn text(&self) -> Result<&'v str> {
        self.must_be(Dtype::String)?;
        std::str::from_utf8(self.data)
            .map_err(|error| Error::Invalid(format!("the text is not UTF-8 ({error}): use bytes")))
    }

    fn must_be(&self, asked: Dtype) -> Result<()> {
        if self.dtype == asked {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the column was stored as {:?} and is asked for as {:?}: ask for the stored type, or for bytes",
            self.dtype, asked
        )))
    }
}

/// # Safety
/// Either `n` is 0 or `n` elements stand there for 'a.
unsafe fn slice_or_empty<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if n == 0 {
        return &[];
    }
    slice::from_raw_parts(data, n)
}
